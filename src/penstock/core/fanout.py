"""Writes an entry to all live wires of its stream, and touches nothing of each but its socket.

A delivery through a feed, its sink and its outlet fetches half a dozen objects into the cache, for each of thousands
of wires. So a live wire that takes bytes at once, has no check of its own and owes nothing has a *seat*: its socket
stands in one flat list. For each stream with many readers the hub keeps a *roster*: the seats of all who want it, in
*blocks* of wires in the same framing. An event is framed once for a block, and the block is one loop over sockets.

    feed live, all written ──▶ seated ──(kernel takes less than all, or anything else is queued)──▶ ordinary feed
              ▲                                                                                         │
              └──────────────────────────(all that is owed was written)─────────────────────────────────┘

Seated wires have one position, the hub's: `Hub.vacate` tells it to a feed that leaves. The place in the list of one who
is not seated holds `ABSENT`: the roster stays as it is, and that wire's feed is offered the entry as any other.
The ledger hears of a block in one go, and names its recipients once for all events of a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.core.feed import Feed, Framing, Taker
from penstock.core.ledger import Recipients
from penstock.values import Entry

MANY: Final = 16
"""Readers from which on a stream has a roster: to fewer an entry goes feed by feed."""
ROSTERS: Final = 1024
"""Streams that have a roster at once. Over it: the oldest roster is made anew at the next event of its stream."""


class _Absent:
    """Stands where nobody is seated."""

    def send(self, data: bytes, /) -> int:
        return -1


ABSENT: Final = _Absent()


class WireBlock:
    """Some wires in the same framing; or, without one, some feeds that each go their own way."""

    __slots__ = ("_apart", "_rest", "feeds", "framing", "recipients", "seats")

    def __init__(self, framing: Framing | None, feeds: list[Feed]) -> None:
        self.framing, self.feeds = framing, feeds
        self.seats = [feed.seat for feed in feeds] if framing is not None else []
        self.recipients = Recipients([feed.who for feed in feeds]) if framing is not None else Recipients()
        self._apart: list[int] = []
        self._rest = self.recipients

    def holds(self, seat: int) -> bool:
        """Whether a seat is one of these. They are in order."""
        place = bisect_left(self.seats, seat)
        return place < len(self.seats) and self.seats[place] == seat

    def without(self, apart: list[int]) -> Recipients:
        """All but those in some seats. A slow wire is slow for more than one event: the same answer is used again."""
        if apart != self._apart:
            left = set(apart)
            some = [who for seat, who in zip(self.seats, self.recipients, strict=True) if seat not in left]
            self._apart, self._rest = apart, Recipients(some)
        return self._rest


class Roster(NamedTuple):
    """Everybody who wants what comes into one stream."""

    blocks: Sequence[WireBlock]
    patterns: int  # `Seats._patterns` when it was made


class Seats:
    """The seated wires of a hub, and the rosters of its busy streams."""

    def __init__(self, block: int, many: int = MANY) -> None:
        self._block, self.many = block, many  # wires in a block at most; readers of a stream with a roster at least
        self.takers: list[Taker] = []
        self.feeds: list[Feed | None] = []
        self._free: list[int] = []
        self._rosters: dict[str, Roster] = {}
        self._patterns = 0  # changes of who wants what by a pattern: any roster may be another one then

    def allot(self, feed: Feed, *, fresh: bool) -> int:
        """A seat for a feed, empty for now; a *fresh* one if those that became free are still in a round."""
        if self._free and not fresh:
            seat = self._free.pop()
            self.feeds[seat] = feed
            return seat
        self.takers.append(ABSENT)
        self.feeds.append(feed)
        return len(self.feeds) - 1

    def give_up(self, seat: int) -> None:
        """Nobody has this seat any more."""
        self.takers[seat], self.feeds[seat] = ABSENT, None
        self._free.append(seat)

    def wishes_changed(self, stream: str | None) -> None:
        """Somebody wants *stream*, or does not want it any more; None is a pattern."""
        if stream is None:
            self._patterns += 1
        else:
            self._rosters.pop(stream, None)

    def blocks(self, stream: str, find: Callable[[str], Collection[Feed]]) -> Sequence[WireBlock]:
        """Those who want what comes into *stream*, each once if they are many."""
        known = self._rosters.get(stream)
        if known is not None and known.patterns == self._patterns:
            return known.blocks
        readers = find(stream)
        if len(readers) < self.many:
            return list(self._in_blocks(None, list(readers)))
        self._rosters.pop(stream, None)
        while len(self._rosters) >= ROSTERS:
            del self._rosters[next(iter(self._rosters))]
        blocks = list(self._cut(dict.fromkeys(readers)))
        self._rosters[stream] = Roster(blocks, self._patterns)
        return blocks

    def _cut(self, feeds: Iterable[Feed]) -> Iterable[WireBlock]:
        found: dict[Framing | None, list[Feed]] = {}
        for feed in feeds:
            found.setdefault(feed.framing if feed.seat >= 0 else None, []).append(feed)
        for framing, alike in found.items():
            if framing is not None:
                alike.sort(key=_seat)
            yield from self._in_blocks(framing, alike)

    def _in_blocks(self, framing: Framing | None, feeds: list[Feed]) -> Iterable[WireBlock]:
        for begin in range(0, len(feeds), self._block):
            yield WireBlock(framing, feeds[begin : begin + self._block])


class Round:
    """Entries of one stream on their way to all who want them, one block at a time."""

    def __init__(self, entries: tuple[Entry, ...], blocks: Sequence[WireBlock], seats: Seats) -> None:
        self.entries, self._blocks, self._seats = entries, blocks, seats
        self.first, self.last = entries[0].id, entries[-1].id
        self._done = 0  # blocks that have had their turn
        self._written: list[WireBlock] = []  # those that were written to
        self._apart: Iterator[Feed] = iter(())  # of the last of them, who is still to be offered them feed by feed
        self._plain = all(entry.index is not None for entry in entries)

    @property
    def over(self) -> bool:
        """Everybody had their turn."""
        return self._done == len(self._blocks)

    def has_given(self, seat: int) -> bool:
        """Whether these entries were written to who sits there."""
        return any(block.holds(seat) for block in self._written)

    def awaits(self, feed: Feed) -> bool:
        """Whether a feed has not had its turn."""
        blocks = self._blocks[self._done :]
        return any(feed in block.feeds if block.framing is None else block.holds(feed.seat) for block in blocks)

    def rest(self) -> list[Feed]:
        """Those who have not had their turn. Whoever asks offers them the entries."""
        return [*self._apart, *(feed for block in self._blocks[self._done :] for feed in block.feeds)]

    def step(self, end: Callable[[Feed, Exception], None]) -> None:
        """Give them to the next block; *end* hears of a feed that fails."""
        block = self._blocks[self._done]
        self._done += 1
        framing = block.framing if self._plain else None
        data = framing.for_all(self.entries) if framing is not None else None
        if framing is None or data is None:
            self._apart = iter(block.feeds)
        else:
            short = self._write(block.seats, data)
            self._written.append(block)
            recipients = block.without([seat for seat, _ in short]) if short else block.recipients
            if recipients:
                framing.sent(self.entries, recipients)
                block.feeds[0].count(len(data) * len(recipients))
            self._apart = iter([feed for seat, sent in short if (feed := self._left_over(seat, data, sent, end))])
        for feed in self._apart:
            self._offer(feed, end)

    def _write(self, seats: list[int], data: bytes) -> list[tuple[int, int]]:
        """Write to all; those that did not take all of it, and how much they took. This is a fan-out's inner loop."""
        takers, size = self._seats.takers, len(data)
        short: list[tuple[int, int]] = []
        for seat in seats:
            try:
                sent = takers[seat].send(data)
            except OSError:
                sent = 0  # there is no room, or no peer: a flush will see
            if sent != size:
                short.append((seat, sent))
        return short

    def _left_over(self, seat: int, data: bytes, sent: int, end: Callable[[Feed, Exception], None]) -> Feed | None:
        """The feed in a seat that was empty. One whose wire took a part owes the rest from here on."""
        feed = self._seats.feeds[seat]
        if feed is None or sent < 0:
            return feed
        try:
            feed.owe(self.entries, data, sent)
        except Exception as error:  # noqa: BLE001 - one reader's trouble is no other's
            end(feed, error)
        return None

    def _offer(self, feed: Feed, end: Callable[[Feed, Exception], None]) -> None:
        entries = self.entries
        try:
            if len(entries) == 1:
                feed.offer_last(entries[0], entries)
            else:
                feed.offer_all(entries)
        except Exception as error:  # noqa: BLE001
            end(feed, error)


def _seat(feed: Feed) -> int:
    return feed.seat
