"""Writes an entry to thousands of live wires at once, by their sockets alone.

A delivery through a feed, its sink and its outlet loads half a dozen objects into the CPU's cache, for each wire. So a
live wire whose socket can be written to now, that filters nothing and has no unsent bytes, gets a *seat*: a place for
its socket in one flat list. For each stream with many readers the hub keeps a *roster*: the seats of all its readers,
in *blocks* of wires with the same framing. An event is encoded once for a block; then one loop writes to its sockets.

    feed live, all written ──▶ seated ──(kernel takes less than all, or anything else is queued)──▶ ordinary feed
              ▲                                                                                         │
              └──────────────────────────(all that is owed was written)─────────────────────────────────┘

A seated wire keeps no position of its own: it has what the hub, or the running round, has written. `Hub.vacate` returns
that id when the wire leaves its seat. An empty seat holds `ABSENT`; it stays in the roster, and the entry is offered to
its feed as to any other. The ledger gets one record for a block, and names its recipients once for a batch of events.
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
    """Wires with the same framing, written to in one loop; without a framing, feeds that are offered each entry."""

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

    def wanted_changed(self, stream: str | None) -> None:
        """The readers of *stream* have changed; None: a pattern was added or removed, which may concern any roster."""
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


class RoundPart(NamedTuple):
    """Entries of one stream, and some who want them."""

    block: WireBlock
    entries: tuple[Entry, ...]


class Round:
    """The newest entries on their way to all feeds that want them, one block at a time.

    A feed that wants several of these streams is offered their entries before the round begins, in order of id. It has
    left its seat then, so the round writes to no wire for two streams.
    """

    def __init__(self, parts: Sequence[RoundPart], seats: Seats) -> None:
        self._parts, self._seats = parts, seats
        self.first = min(part.entries[0].id for part in parts)
        self._done = 0  # parts that have had their turn
        self._written: list[RoundPart] = []  # those that were written
        self._apart: Iterator[Feed] = iter(())  # of the last part, who is still to be offered it feed by feed

    @property
    def over(self) -> bool:
        """Everybody had their turn."""
        return self._done == len(self._parts)

    def given(self, seat: int) -> int | None:
        """The last id that this round wrote to *seat*; None if it wrote nothing there."""
        return next((part.entries[-1].id for part in self._written if part.block.holds(seat)), None)

    def awaited(self, feed: Feed) -> Sequence[Entry]:
        """What a feed has not had, because its turn has not come."""
        for block, entries in self._parts[self._done :]:
            if feed in block.feeds if block.framing is None else block.holds(feed.seat):
                return entries
        return ()

    def rest(self) -> list[tuple[Feed, Sequence[Entry]]]:
        """Feeds that have not had their turn, with the entries they miss. The caller offers these to them."""
        begun = [(feed, self._parts[self._done - 1].entries) for feed in self._apart]
        return [*begun, *((feed, entries) for block, entries in self._parts[self._done :] for feed in block.feeds)]

    def step(self, end: Callable[[Feed, Exception], None]) -> int:
        """Give the next block what it wants; how many there are in it. *end* hears of a feed that fails."""
        part = block, entries = self._parts[self._done]
        self._done += 1
        framing = block.framing if all(entry.index is not None for entry in entries) else None
        data = framing.for_all(entries) if framing is not None else None
        if framing is None or data is None:
            self._apart = iter(block.feeds)
        else:
            short = self._write(block.seats, data)
            self._written.append(part)
            recipients = block.without([seat for seat, _ in short]) if short else block.recipients
            if recipients:
                framing.sent(entries, recipients)
                block.feeds[0].count(len(data) * len(recipients))
            owing = [self._left_over(seat, entries, data, sent, end) for seat, sent in short]
            self._apart = iter([feed for feed in owing if feed is not None])
        for feed in self._apart:
            try:
                feed.offer_newest(entries)
            except Exception as error:  # noqa: BLE001 - one reader's trouble is no other's
                end(feed, error)
        return len(block.feeds)

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

    def _left_over(
        self, seat: int, entries: Sequence[Entry], data: bytes, sent: int, end: Callable[[Feed, Exception], None]
    ) -> Feed | None:
        """The feed in a seat that was empty. One whose wire took a part owes the rest from here on."""
        feed = self._seats.feeds[seat]
        if feed is None or sent < 0:
            return feed
        try:
            feed.owe(entries, data, sent)
        except Exception as error:  # noqa: BLE001
            end(feed, error)
        return None


def _seat(feed: Feed) -> int:
    return feed.seat
