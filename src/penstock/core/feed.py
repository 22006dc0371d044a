"""One live reader: from its position through the log into the live flow.

A feed is always in one of these states:

    behind   there are entries after its position that it is not offered: the hub reads them from the log, in pages
    live     it has been offered everything up to the hub's position
    stopped  it has ended; it takes nothing any more

    start ──▶ behind ──(reached the recent entries)──▶ live
                ▲                                        │
                └──(too much waits for a slow reader)────┘

The seam: going live happens in one loop turn, without an await, from entries the hub holds in memory.
So there is neither a gap nor a duplicate between the last page and the first live entry.

Resume, replay and fan-out of `/v1/tail`, sps, the message stream, streams that Trickle reads, and Web Push's sender and
receipts go through feeds. Event Horizon's pushers do not. An app has a byte cursor in each stream. Each of its answers
says where it is, which may be further back. So a pusher reads the page at that cursor, whatever it was told before; a
wake-up is only a hint. With a feed for each stream of an app, entries would come by id, to be read again by cursor.
It would take 520 bytes and 27 µs to start each of them; the tables of `doors/eventhorizon/subscriptions.py` take 340
bytes and 2 µs for a stream and its subscriber (20,000 streams, engine in memory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, cast

from penstock.core.ledger import Recipient, Recipients
from penstock.values import Entry, Kind, PlainEntries

_META = Kind.META

SLICE_BYTES: Final = 256 * 1024
"""Bytes of entries that one feed is given at once from memory (one entry always fits): they are encoded in one go, and
wait in its buffer."""

IN_TURN: Final = -2
"""In place of a seat: the feed is offered nothing (`core/slow_pattern_feeds.py`)."""


class Selected(NamedTuple):
    """What the hub has in memory for a feed: the next entries, and whether these are all."""

    entries: list[Entry]
    size: int  # bytes of their bodies
    complete: bool
    upto: int  # if these are not all: up to this id they are
    looked_at: int = 0  # entries, to find these by patterns


class Sink(Protocol):
    """Where a feed's entries go: a door's end of one connection."""

    @property
    def who(self) -> Recipient:
        """For whom, as the ledger and the list of consumers name it."""
        ...

    @property
    def full(self) -> bool:
        """It cannot take more now; it calls `Feed.resume` when it can."""
        ...

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take entries, ascending by id, at most as many as may wait. If it raises, its feed ends by `failed`."""
        ...

    def deliver_last(self, entries: Sequence[Entry]) -> bool:
        """As `deliver`, of one entry after which nothing more comes for now: it can be written at once.

        False if it is full, and has taken nothing.
        """
        ...

    def gap(self, after: int, upto: int) -> None:
        """Entries between these ids may have existed, and cannot be had any more."""
        ...

    def failed(self, error: Exception) -> None:
        """The log cannot be read, or the sink could not take what was in it; the feed has stopped."""
        ...


class Taker(Protocol):
    """A socket, as a fan-out sees it."""

    def send(self, data: bytes, /) -> int:
        """Take bytes at once; how many."""
        ...


class Framing(Protocol):
    """How entries look on wires of one kind."""

    def for_all(self, entries: tuple[Entry, ...]) -> bytes | None:
        """What each of them writes for entries of one stream; None if that is not the same for all."""
        ...

    def sent(self, entries: tuple[Entry, ...], recipients: Recipients) -> None:
        """All of these recipients were written just that."""
        ...


class WireSink(Sink, Protocol):
    """A sink that can be written to together with others of the same framing (`core/fanout.py`)."""

    @property
    def framing(self) -> Framing:
        """How entries look on it."""
        ...

    @property
    def taker(self) -> Taker | None:
        """Where bytes can be written at once; None while something is in the way, or some entries are not for it."""
        ...

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        """Of what these entries look like, so many bytes were taken: write the rest, before anything else."""
        ...

    def count(self, written: int) -> None:
        """So many bytes went out to it and others."""
        ...


def take_if_room(sink: Sink, entries: Sequence[Entry]) -> bool:
    """`deliver_last` for sinks that have no quicker way for a single entry."""
    if sink.full:
        return False
    sink.deliver(entries)
    return True


class FeedHub(Protocol):
    """What a feed needs of the hub that it belongs to (`core/hub.py`)."""

    position: int  # the newest id that feeds were offered
    forgotten: int  # entries up to here are not in the hub's memory any more
    woken: list[Feed]  # feeds that have something waiting: they are flushed in this turn of the loop
    went_behind: int

    @property
    def offered(self) -> int:
        """The id up to which each feed that is live has been offered what it wants."""
        ...

    def enqueue(self, feed: Feed) -> None:
        """Put a feed that is behind into the line, once."""
        ...

    def change(self, feed: Feed, patterns: tuple[str, ...]) -> None:
        """Change what an open feed wants."""
        ...

    def forget(self, feed: Feed) -> None:
        """Let a stopped feed go."""
        ...

    def seat(self, feed: Feed, taker: Taker) -> None:
        """Write to *taker* from now on, instead of offering entries to the feed."""
        ...

    def vacate(self, seat: int) -> int | None:
        """Write to *seat* no longer; return the id up to which all was written there. None if the seat was empty."""
        ...


class Feed:
    """What one live reader has waiting in memory, and its position for when that is not enough.

    At most *limit* entries wait, and only such as the hub has in memory anyway, so a slow reader costs
    a list of references. Beyond that what waits is forgotten and the feed is behind: that loses nothing,
    because the log has it and the feed reads on from its position.
    """

    __slots__ = ("__weakref__", "_hub", "_limit", "_offered", "_sink", "_waiting", "allow", "behind", "meta",
                 "patterns", "position", "queued", "seat", "stopped")  # fmt: skip

    def __init__(
        self, hub: FeedHub, sink: Sink, patterns: tuple[str, ...], after: int, *, limit: int, meta: bool = False,
        allow: Callable[[Entry], bool] | None = None,
    ) -> None:  # fmt: skip
        self._hub, self._sink, self._limit, self.allow = hub, sink, limit, allow
        self.patterns, self.meta = patterns, meta
        self.position = after  # everything up to here was delivered, or is not for this reader
        self._offered = after  # … or is waiting
        # None rather than a list while nothing waits: a fan-out would fetch thousands of empty lists into the cache.
        self._waiting: list[Entry] | None = None
        self.queued = False  # the hub has it in its line of those that read the log, or reads for it right now
        self.behind = True
        self.stopped = False
        self.seat = -1  # among those that can be written to directly; none

    @property
    def away(self) -> bool:
        """Nobody reads now: the sink takes the next entry only as news, and stops the feed."""
        return False

    @property
    def reached(self) -> int:
        """The id up to which the sink has been given all that is for it."""
        return self.position if self.behind or self._waiting else max(self.position, self._hub.offered)

    @property
    def lag(self) -> int:
        """How many ids lie between its position and the hub's; 0 when all that was for it was delivered."""
        return self._hub.position - self.position if self.behind or self._waiting else 0

    @property
    def sink(self) -> Sink:
        """Where its entries go."""
        return self._sink

    @property
    def who(self) -> Recipient:
        """For whom it is."""
        return self._sink.who

    def wants(self, entry: Entry) -> bool:
        """Whether an entry of a matching stream is for this reader at all."""
        if entry.kind is _META and not self.meta:
            return False
        return self.allow is None or self.allow(entry)

    def offer(self, entry: Entry) -> None:
        """Take the newest entry. An id that was offered before, through another pattern, is ignored."""
        if self.behind or entry.id <= self._offered:
            return
        # Nearly every entry has an index and nearly no feed a check: this is the path of each delivery.
        if (entry.index is None or self.allow is not None) and not self.wants(entry):
            return
        waiting = self._waiting
        if waiting is None:
            self.leave_seat()
            self._hub.woken.append(self)
            self._waiting = [entry]
        elif len(waiting) >= self._limit or waiting[0].id <= self._hub.forgotten:
            self._fall_behind()
            return
        else:
            waiting.append(entry)
        self._offered = entry.id

    def offer_last(self, entry: Entry, alone: tuple[Entry]) -> None:
        """Take the newest entry, after which nothing more comes for now: hand it on at once if that can be.

        *alone* is the same entry in a tuple, made once for all feeds. This is the path of a fan-out.
        """
        id, offered = entry.id, self._offered
        if self.behind or id <= offered:
            return
        if (entry.index is None or self.allow is not None) and not self.wants(entry):
            return
        self._offered = id  # before it is delivered: another pattern may bring it once more meanwhile
        if self._waiting is None and self._sink.deliver_last(alone):
            self.position = id
        else:
            self._offered = offered
            self.offer(entry)

    def offer_all(self, entries: Sequence[Entry]) -> None:
        """Take the newest entries, all of one stream and all with an index, as `offer_last` takes one."""
        if self.behind:
            return
        plain = self.allow is None and self._waiting is None and entries[0].id > self._offered
        if plain and len(entries) <= self._limit and not self._sink.full:
            self._offered = self.position = entries[-1].id
            self._sink.deliver(entries)
        else:
            for entry in entries:
                self.offer(entry)

    def offer_newest(self, entries: tuple[Entry, ...]) -> None:
        """Take the newest entries of one stream in the quickest way."""
        if len(entries) == 1:
            self.offer_last(entries[0], entries)
        elif all(entry.index is not None for entry in entries):
            self.offer_all(entries)
        else:
            for entry in entries:
                self.offer(entry)

    def flush(self) -> None:
        """Give what waits to the sink, unless that is full."""
        entries = self._waiting
        if entries is not None and not self._sink.full:
            self._waiting = None
            if len(entries) > 1 and sum([len(entry.body) for entry in entries]) > SLICE_BYTES:
                self._flush_first(entries)
                return
            self.position = entries[-1].id
            self._sink.deliver(entries)

    def _flush_first(self, entries: list[Entry]) -> None:
        """Give as much as may go at once; the rest comes from the hub's memory, in turn with other feeds."""
        room, count = SLICE_BYTES - len(entries[0].body), 1
        while count < len(entries) and room >= len(entries[count].body):
            room -= len(entries[count].body)
            count += 1
        self.position = self._offered = entries[count - 1].id
        self.behind = count < len(entries)
        self._sink.deliver(entries[:count])
        if self.can_step:
            self._hub.enqueue(self)

    def resume(self) -> None:
        """The sink can take more."""
        if self.stopped:
            return
        if self.behind:
            self._hub.enqueue(self)
        else:
            self.flush()

    # ── its seat (`core/fanout.py`) ───────────────────────────────────────────────────────────

    @property
    def framing(self) -> Framing:
        """How entries look on its wire. Only who has a seat is asked."""
        return cast("WireSink", self._sink).framing

    def take_seat(self) -> None:
        """Be written to directly from now on, if nothing is in the way. `position` stands still meanwhile."""
        if self.seat >= 0 and not self.behind and self._waiting is None:
            taker = cast("WireSink", self._sink).taker
            if taker is not None:
                self._hub.seat(self, taker)

    def leave_seat(self) -> None:
        """Be an ordinary feed again, which has had what was written meanwhile."""
        if self.seat >= 0 and (upto := self._hub.vacate(self.seat)) is not None:
            self.position = max(self.position, upto)
            self._offered = max(self._offered, upto)

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        """Its wire took less than all of what was written: the sink has the rest to write, and no seat until then."""
        self.leave_seat()
        self.position = self._offered = entries[-1].id
        cast("WireSink", self._sink).owe(entries, data, sent)

    def count(self, written: int) -> None:
        """So many bytes were written to wires of its framing."""
        cast("WireSink", self._sink).count(written)

    # ── ends and changes ──────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """End it. Nothing is delivered after this returns."""
        if not self.stopped:
            self.stopped = self.behind = True
            self._waiting = None
            self._hub.forget(self)

    def change(self, patterns: tuple[str, ...]) -> None:
        """Want other streams from now on; what waits already still comes."""
        self._hub.change(self, patterns)
        self.patterns = patterns

    def _fall_behind(self) -> None:
        self._waiting = None
        self._offered = self.position
        self.behind = True
        self._hub.went_behind += 1
        if not self._sink.full:
            self._hub.enqueue(self)

    def wait_for_page(self) -> None:
        """Read the log from here on, until all that is wanted comes by itself."""
        if not self.behind:
            self.leave_seat()
            self.position = self._offered = self.reached
            self._waiting, self.behind = None, True
            self._hub.enqueue(self)

    # ── as one of `core/slow_pattern_feeds.py` ─────────────────────────────────────────────────────

    def serve_in_turn(self) -> None:
        """Be offered nothing from now on. What waits for a slow reader is read again, by the patterns of that time."""
        self.leave_seat()
        if self._waiting is not None:
            self._fall_behind()
        elif not self.behind:
            self._offered = self._hub.position
        self.seat = IN_TURN

    @property
    def in_turn(self) -> bool:
        """It is offered nothing: whenever something comes it is behind for a moment, which says nothing about it."""
        return self.seat == IN_TURN

    def look_again(self) -> None:
        """There may be something new for it."""
        if not self.behind:
            self.position, self.behind = self._offered, True
            self._hub.enqueue(self)

    # ── called by the hub while the feed is behind ────────────────────────────────────────────

    @property
    def can_step(self) -> bool:
        """It is behind and its sink takes more."""
        return self.behind and not self.stopped and not self._sink.full

    def take_page(self, entries: Sequence[Entry], upto: int) -> None:
        """Take what a read of the log found."""
        plain = self.allow is None and isinstance(entries, PlainEntries)
        wanted = entries if plain else [entry for entry in entries if self.wants(entry)]
        self.position = self._offered = upto
        if wanted:
            self._sink.deliver(wanted)

    def skip_gap(self, upto: int) -> None:
        """The log has nothing up to *upto* any more."""
        after, self.position, self._offered = self.position, upto, upto
        self._sink.gap(after, upto)

    def join(self, recent: Selected, position: int) -> None:
        """Take the next entries after its position, which the hub has in memory.

        When these are all, the feed is live from here on; else it stays behind for the rest.
        """
        wanted = [entry for entry in recent.entries if self.wants(entry)]
        if not recent.complete:
            self.take_page(wanted, recent.upto)
            return
        self.behind = False
        self._offered = position
        self._waiting = wanted or None
        self.flush()
        if not self.stopped:
            self.take_seat()
            self._tell_live()

    def _tell_live(self) -> None:
        """It has become live: the sink was given all that there is, or is full."""

    def fail(self, error: Exception) -> None:
        """End it: the log could not be read for it, or its sink raised."""
        self.stop()
        self._sink.failed(error)


class WatchedFeed(Feed):
    """A feed that says when it becomes live, and whose reader may be away for a time.

    A class of its own: with two more fields in each feed, a delivery to 5,000 wires took 1.36 of the bare loop, not
    1.27 (medians of five runs). What a delivery touches then lies in more lines of the cache.
    """

    __slots__ = ("_is_away", "_on_live")

    def __init__(
        self, hub: FeedHub, sink: Sink, patterns: tuple[str, ...], after: int, *, limit: int,
        allow: Callable[[Entry], bool] | None, on_live: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(hub, sink, patterns, after, limit=limit, allow=allow)
        self._on_live, self._is_away = on_live, False

    @property
    def away(self) -> bool:
        return self._is_away

    @away.setter
    def away(self, away: bool) -> None:
        self._is_away = away

    def _tell_live(self) -> None:
        self._on_live()
