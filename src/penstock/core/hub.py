"""Follows the log, finds who wants each entry, and wakes them.

The hub keeps the most recent entries in memory, bounded by count and by bytes. A reader that was away for a
moment, or thousands of them at once, catch up from there, without a read of the disk. A feed that is further
behind waits in one line; a few tasks take feeds from that line and read a page for each. So a slow reader
costs one place in that line, and has no queue of its own. So does one whose patterns take long to look up: it comes
into that line whenever there is something new (`slow_pattern_feeds.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from penstock.core.background import Background, Loop, Tasks
from penstock.core.fanout import ABSENT, MANY, Round, RoundPart, Seats
from penstock.core.feed import SLICE_BYTES, Feed, Sink, Taker, WatchedFeed, WireSink
from penstock.core.log import Log
from penstock.core.matching import Interest, is_quick
from penstock.core.names import is_exact
from penstock.core.recent_entries import LOOKED_AT, RecentEntries
from penstock.core.slow_pattern_feeds import SlowPatternFeeds
from penstock.core.wanted_streams import WantedStreams
from penstock.errors import EngineGone, PenstockError, Trimmed
from penstock.settings import DEFAULTS, HubSettings
from penstock.values import Entry, Page

log = logging.getLogger("penstock.hub")

AT_ONCE = 512
"""Feeds that are given the newest entry before the loop may do something else: about 6 ms of writing."""
CROWD = 8
"""When so many feeds wait in the line, the newest entries from before the start are read into memory, once."""
JOINS = 8
"""Feeds that are served from memory before the loop may do something else: with a hundred entries each some 2 ms."""
PAGE_BYTES = 1 << 20
"""Bytes of a page that is read for one feed: it is encoded in one go. (One entry always fits.)"""
RECALL_IDS = 64
"""Ids of the first stretch that a recall reads, from the newest entries back; each further one is twice as long."""
TOGETHER = 16
"""Streams whose newest entries go round together, to readers of one of them each; with more all but the last entry are
offered feed by feed."""
READ_AHEAD = 4
"""Pages that are read before they are asked for, of all feeds together: what they hold in memory at most."""
F = TypeVar("F", bound=Feed)
Allow = Callable[[Entry], bool]
"""Whether a reader may be given an entry."""
Find = Callable[[str], Collection[Feed]]
"""Who is offered what comes into a stream."""


class Hub:
    """Between one log and its live readers. Lives in `async with`."""

    def __init__(
        self, source: Log, settings: HubSettings = DEFAULTS.hub, *, readers: int = 4, at_once: int = AT_ONCE,
        many: int = MANY, selective: bool = False, alone: bool = False, background: Background | None = None,
    ) -> None:  # fmt: skip
        """*selective*: the log need not tell of entries that no feed wants. *alone*: no other node serves this log."""
        self._log, self._alone, self._background = source, alone, background or Background()
        self._wanted = WantedStreams(moved=self._moved) if selective else None
        self._interest: Interest[Feed] = Interest()
        self._in_turn = SlowPatternFeeds()
        self._looked_at = 0  # entries, in this turn of the loop, to find what patterns cover
        self._feeds: dict[Feed, None] = {}
        self._limits = settings.recent, settings.recent_bytes
        self._recent = RecentEntries(*self._limits, source.followed)
        self._tail, self._readers, self._at_once = settings.tail, readers, at_once
        self._seats = Seats(at_once, many)
        self._round: Round | None = None
        self._going_on: asyncio.Handle | None = None  # the call that goes on with it
        self._returning: list[Feed] = []  # those that take their seats when it is over
        self._line: deque[Feed] = deque()
        self._work = asyncio.Event()
        self._serving: list[Loop] = []
        self._leaving = False
        self._tasks = Tasks("hub")
        self._ahead: dict[Feed, _Ahead] = {}
        self._unseen: dict[Feed, _Unseen] = {}  # of feeds that may not be given anything yet
        self._recalled = selective  # what is in memory is not all there is
        self.woken: list[Feed] = []
        self.position = source.followed
        self.offered = source.followed  # each feed that is live has been offered what it wants up to here
        self.forgotten = source.followed  # entries up to here are not in memory any more
        self.went_behind = 0
        self.failed = 0  # feeds that ended by an exception

    async def __aenter__(self) -> Self:
        self._log.follow(self._follow, self._wanted)
        self._serving = [self._background.forever("hub.line", self._serve_line) for _ in range(self._readers)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._finish_round()
        for feed in list(self._ahead):
            self._forget_ahead(feed)
        for unseen in self._unseen.values():
            unseen.forget()
        self._leaving = True
        await asyncio.gather(*(loop.stop() for loop in self._serving), return_exceptions=True)
        await self._tasks.close()

    @property
    def feeds(self) -> Sequence[Feed]:
        """The feeds whose readers are connected now (`Feed.away` is False)."""
        return tuple([feed for feed in self._feeds if not feed.away])

    @property
    def open_feeds(self) -> int:
        """How many there are, those whose readers are away included."""
        return len(self._feeds)

    def index_of(self, id: int) -> int | None:
        """The index of a recent entry in its stream; None if it is not in memory any more."""
        return self._recent.index_of(id)

    def readers(self, stream: str) -> list[Feed]:
        """The feeds that want what comes into *stream*, each once."""
        return list(dict.fromkeys([*self._interest.find(stream), *self._in_turn.find(stream)]))

    @property
    def waiting_line(self) -> int:
        """How many feeds wait for a page of the log."""
        return len(self._line)

    def start(
        self, sink: Sink, patterns: tuple[str, ...], *, after: int | None = None, meta: bool = False,
        allow: Callable[[Entry], bool] | None = None,
    ) -> Feed:  # fmt: skip
        """Begin to feed *sink* with everything after id *after*; None means from now on."""
        allow = self._without_seen(after, allow)
        return self._begin(Feed(self, sink, patterns, self._from(after), limit=self._tail, meta=meta, allow=allow))

    def start_wire(
        self, sink: WireSink, patterns: tuple[str, ...], *, after: int | None = None, meta: bool = False,
        allow: Callable[[Entry], bool] | None = None,
    ) -> Feed:  # fmt: skip
        """As `start`. Once it is live the wire is written to together with others, if it wants what all get."""
        allow = self._without_seen(after, allow)
        feed = Feed(self, sink, patterns, self._from(after), limit=self._tail, meta=meta, allow=allow)
        if not meta and allow is None:
            feed.seat = self._seats.allot(feed, fresh=self._round is not None)
        return self._begin(feed)

    def start_watched(
        self, sink: Sink, patterns: tuple[str, ...], *, after: int | None = None,
        allow: Callable[[Entry], bool] | None = None, on_live: Callable[[], None],
    ) -> WatchedFeed:  # fmt: skip
        """As `start`. *on_live* is called whenever the feed becomes live, which may be before this returns."""
        allow, after = self._without_seen(after, allow), self._from(after)
        return self._begin(WatchedFeed(self, sink, patterns, after, limit=self._tail, allow=allow, on_live=on_live))

    def _from(self, after: int | None) -> int:
        return self.position if after is None else min(after, self.position)

    def _without_seen(self, after: int | None, allow: Allow | None) -> Allow | None:
        """*allow*, which also hides what the reader already has from another node that is ahead of this one."""
        if after is None or after <= self.position or self._alone:
            return allow
        return _Unseen(after, asyncio.ensure_future(self._log.newest()), allow)

    def _begin(self, feed: F) -> F:
        if isinstance(feed.allow, _Unseen):
            self._unseen[feed] = feed.allow
        self._feeds[feed] = None
        self._listen(feed, feed.patterns)
        if self._wanted is not None:
            self._wanted.add(*set(feed.patterns))
        try:
            if self._looked_at < LOOKED_AT or all(map(is_exact, feed.patterns)):
                self._join(feed)
        except Exception as error:  # noqa: BLE001
            self._end(feed, error)
        if feed.can_step:
            self.enqueue(feed)
        return feed

    def change(self, feed: Feed, patterns: tuple[str, ...]) -> None:
        """Change what an open feed wants, in one step. A live feed is given what waits for it first.

        A feed that is behind reads on with the new patterns: entries from before the change are matched by these, too.
        """
        self._finish_round()
        self._flush_woken()
        self._forget_ahead(feed)
        if feed in self._in_turn or not all(map(is_quick, patterns)):
            self._listen_no_more(feed)
        else:
            for pattern in set(feed.patterns) - set(patterns):
                self._remove_interest(pattern, feed)
        self._listen(feed, patterns)
        if self._wanted is not None:
            self._wanted.add(*set(patterns))
            self._wanted.remove(*set(feed.patterns))
            if self._wanted.since(patterns) > self.position:
                feed.wait_for_page()

    def _listen(self, feed: Feed, patterns: tuple[str, ...]) -> None:
        """Have a feed offered what these cover, or look for it in turn."""
        if all(map(is_quick, patterns)):
            for pattern in patterns:
                self._add_interest(pattern, feed)
        else:
            seat = feed.seat
            feed.serve_in_turn()
            if seat >= 0:
                self._seats.give_up(seat)
            self._in_turn.add(feed, patterns)

    def _listen_no_more(self, feed: Feed) -> None:
        if feed in self._in_turn:
            self._in_turn.remove(feed)
            feed.seat = -1
        else:
            for pattern in feed.patterns:
                self._remove_interest(pattern, feed)

    def _add_interest(self, pattern: str, feed: Feed) -> None:
        self._interest.add(pattern, feed)
        self._seats.wanted_changed(pattern if is_exact(pattern) else None)

    def _remove_interest(self, pattern: str, feed: Feed) -> None:
        self._interest.remove(pattern, feed)
        self._seats.wanted_changed(pattern if is_exact(pattern) else None)

    def forget_recent(self) -> None:
        """Empty the memory of recent entries: bodies in it may have been erased. Feeds then read from the log."""
        self._recent = RecentEntries(*self._limits, self.position)
        self.forgotten = self._recent.after
        for feed in list(self._ahead):
            self._forget_ahead(feed)

    def forget(self, feed: Feed) -> None:
        """Let a stopped feed go."""
        self._forget_ahead(feed)
        if unseen := self._unseen.pop(feed, None):
            unseen.forget()
        self._feeds.pop(feed, None)
        self._listen_no_more(feed)
        if self._wanted is not None:
            self._wanted.remove(*set(feed.patterns))
        if feed.seat >= 0:
            self._seats.give_up(feed.seat)
            feed.seat = -1

    def seat(self, feed: Feed, taker: Taker) -> None:
        """Write to *taker* from now on, instead of offering entries to the feed."""
        if self._round is not None and feed.position >= self._round.first:
            self._returning.append(feed)  # the round may still come to its seat, with entries that it has
        else:
            self._seats.takers[feed.seat] = taker

    def vacate(self, seat: int) -> int | None:
        """Write to *seat* no longer; return the id up to which all was written there. None if the seat was empty."""
        takers = self._seats.takers
        if takers[seat] is ABSENT:
            return None
        takers[seat] = ABSENT
        given = self._round.given(seat) if self._round is not None else None
        return self.offered if given is None else given

    def enqueue(self, feed: Feed) -> None:
        """Put a feed that is behind into the line, once."""
        if not feed.queued:
            feed.queued = True
            self._line.append(feed)
            self._work.set()
            if len(self._line) >= CROWD and not self._recalled:
                self._recalled = True
                self._tasks.start(self._recall())

    def _follow(self, entries: Sequence[Entry]) -> None:
        """Offer what was just appended; then give each woken feed all of it at once."""
        find: Find = self._interest.find if len(entries) == 1 else FoundReaders(self._interest.find).__getitem__
        self._recent.extend(entries)
        self.forgotten = self._recent.after
        self._in_turn.look_again()
        wanted = entries if len(entries) == 1 else [entry for entry in entries if find(entry.stream)]
        if self._round is None:
            self._offer_newest(wanted, entries[-1].id, find)
        elif sum([len(find(entry.stream)) for entry in wanted]) < self._seats.many:
            self.position = entries[-1].id
            self._offer_besides(wanted, self._round, find)
        else:  # more than can be written comes: it is gathered for each wire, and written when its turn comes
            self._finish_round()
            self.position = entries[-1].id
            for entry in wanted:
                self._offer(entry, list(find(entry.stream)))
            self._flush_woken()
            self.offered = self.position

    def _offer_newest(self, wanted: Sequence[Entry], position: int, find: Find) -> None:
        """Offer entries, and begin a round with those that go to many at once."""
        self.position = position
        parts = self._parts(wanted, find)
        if parts:
            self._round = Round(parts, self._seats)
            self.offered = self._round.first - 1
            self._go_round()
        else:
            self._flush_woken()
            self.offered = position

    def _parts(self, wanted: Sequence[Entry], find: Find) -> list[RoundPart]:
        """The parts of a new round: which block gets which entries. What cannot wait for a round is offered here."""
        made = next((place for place, entry in enumerate(wanted) if entry.index is not None), len(wanted))
        together: dict[str, list[Entry]] = {}
        for entry in wanted[made:]:
            together.setdefault(entry.stream, []).append(entry)
        several = self._in_several(together, find) if 1 < len(together) <= TOGETHER else None
        if len(together) > 1 and several is None:
            made = len(wanted) - 1
            together = {wanted[-1].stream: [wanted[-1]]}
        for entry in wanted[:made]:  # such as those of a stream that was just made: few want them
            self._offer(entry, list(find(entry.stream)))  # a copy: a sink may end its feed while it takes entries
        for entry in wanted[made:]:
            if several:
                self._offer(entry, [feed for feed in find(entry.stream) if feed in several])
        return [
            RoundPart(block, entries)
            for stream, entries in zip(together, map(tuple, together.values()), strict=True)
            for block in self._seats.blocks(stream, find)
        ]

    def _in_several(self, streams: Iterable[str], find: Find) -> set[Feed] | None:
        """Feeds that want more than one of *streams*. None if no stream has many readers besides these feeds."""
        readers = [set(find(stream)) for stream in streams]
        seen: set[Feed] = set()
        several: set[Feed] = set()
        for some in readers:
            several |= seen & some
            seen |= some
        return several if any(len(some - several) >= self._seats.many for some in readers) else None

    def _offer_besides(self, wanted: Sequence[Entry], turn: Round, find: Find) -> None:
        """Offer entries with few readers while a round runs. A feed that waits for the round gets that first."""
        for entry in wanted:
            for feed in list(find(entry.stream)):
                for earlier in turn.awaited(feed):
                    self._offer(earlier, (feed,))
                self._offer(entry, (feed,))
        self._flush_woken()

    def _moved(self, position: int) -> None:
        """The log has moved on; what feeds want of it was offered, or goes round now."""
        self.position = position
        if self._round is None:
            self.offered = position

    def _go_round(self) -> None:
        """Give the newest entries to the next of those who want them; the rest wait for the loop's other business."""
        turn, served = self._round, 0
        while turn is not None and not turn.over and served < self._at_once:
            served += turn.step(self._end)
        self._flush_woken()
        if turn is None or self._round is not turn:
            return  # a reader changed what it wants: the rest were given it at once
        if turn.over:
            self._end_round()
        else:
            self._going_on = asyncio.get_running_loop().call_soon(self._go_round)

    def _finish_round(self) -> None:
        """End the round at once: feeds that have not had their turn are offered its entries one by one."""
        if self._round is not None:
            rest, self._round = self._round.rest(), None  # nothing was written to these, so nobody need be asked
            for feed, entries in rest:
                for entry in entries:
                    self._offer(entry, (feed,))
            self._end_round()

    def _end_round(self) -> None:
        if self._going_on is not None:
            self._going_on.cancel()
        self._round = self._going_on = None
        self.offered = self.position
        returning, self._returning = self._returning, []
        for feed in returning:
            feed.take_seat()

    def _offer(self, entry: Entry, wanting: Iterable[Feed]) -> None:
        for feed in wanting:
            try:
                feed.offer(entry)
            except Exception as error:  # noqa: BLE001 - one reader's trouble is no other's
                self._end(feed, error)

    def _flush_woken(self) -> None:
        woken, self.woken = self.woken, []
        for feed in woken:
            try:
                feed.flush()
            except Exception as error:  # noqa: BLE001
                self._end(feed, error)

    def _end(self, feed: Feed, error: Exception) -> None:
        """End one feed whose reader cannot take an entry. All others go on."""
        self.failed += 1
        log.error("feed.failed", extra={"after": feed.position, "door": feed.who.door}, exc_info=error)
        try:
            feed.fail(error)
        except Exception:
            log.exception("feed.not_ended", extra={"door": feed.who.door})

    def _join(self, feed: Feed) -> int | None:
        """Serve a feed from the recent entries if they reach back to its position; how many bytes. Never awaits."""
        if not self._recent.reaches(feed) or not feed.can_step or (self._unseen and feed in self._unseen):
            return None
        if self._wanted is not None and self._wanted.since(feed.patterns) > feed.position:
            return None
        selected = self._recent.select(feed.patterns, feed.position, self._tail, self._in_turn.wanted_by(feed))
        if selected.looked_at and not self._looked_at:
            asyncio.get_running_loop().call_soon(self._look_anew)
        self._looked_at += selected.looked_at
        feed.join(selected, self.position)
        return selected.size

    def _look_anew(self) -> None:
        """A new turn of the loop has begun."""
        self._looked_at = 0

    async def _recall(self) -> None:
        """Read the newest entries from before the start into memory: after a restart thousands want the same ones."""
        recent, (limit, limit_bytes) = self._recent, self._limits
        lowest, begin, span = max(self._log.trimmed_upto, recent.after - limit), recent.after, RECALL_IDS
        found: deque[Entry] = deque()
        left = limit_bytes
        try:
            # From the newest back, so that no more is read and held than there is room for.
            while begin > lowest and left > 0:
                stretch, reached, left = await self._read_back(max(lowest, begin - span), begin, left)
                found.extendleft(reversed(stretch))
                begin, span = reached, 2 * span
        except PenstockError as error:
            log.warning("recent.not_recalled", extra={"error": str(error)})
        else:
            if recent is self._recent:  # and not forgotten meanwhile
                recent.precede(list(found), begin)

    async def _read_back(self, begin: int, upto: int, room: int) -> tuple[deque[Entry], int, int]:
        """The newest entries of a stretch that fit into *room* bytes; the id before them, and the room that is left.

        None is left as soon as one did not fit.
        """
        found: deque[Entry] = deque()
        after, cut = begin, False
        while after < upto:
            page = await self._log.read_after((">",), after, limit_bytes=PAGE_BYTES)
            for entry in page.entries:
                if entry.id <= upto:
                    found.append(entry)
                    room -= len(entry.body)
            after = page.upto
            while room < 0:
                oldest = found.popleft()
                begin, room, cut = oldest.id, room + len(oldest.body), True
        return found, begin, 0 if cut else room

    async def _serve_line(self) -> None:
        """Serve feeds of the line until others have their turn. One round of a loop that several do at once."""
        while not self._line:
            self._work.clear()
            await self._work.wait()
        served = 0
        while self._line and served < JOINS:
            served += await self._serve(self._line.popleft())
        if served >= JOINS:
            await asyncio.sleep(0)

    async def _serve(self, feed: Feed) -> int:
        """Give a feed what is next for it; how many joins that is worth."""
        served = JOINS
        try:
            while self._looked_at >= LOOKED_AT:  # noqa: ASYNC110 - others have their turn, which is all it waits for
                await asyncio.sleep(0)
            if (size := self._join(feed)) is not None:
                served = max(1, JOINS * size // SLICE_BYTES)
            elif feed.can_step:
                await self._step(feed)
        except asyncio.CancelledError:
            if not self._leaving:  # what it waited for was: else the feed would be neither live nor in the line
                self._end(feed, EngineGone("a read of the log was broken off"))
            raise
        except Exception as error:  # noqa: BLE001
            # One reader's trouble must not end the service of all others.
            self._end(feed, error)
        # Only now: a feed that asks for more while its page is being read must not be read for twice.
        feed.queued = False
        if feed.can_step:
            self.enqueue(feed)
        return served

    async def _step(self, feed: Feed) -> None:
        """Read one page for one feed, and begin with the next while this one is encoded."""
        patterns = feed.patterns
        if unseen := self._unseen.get(feed):
            await unseen.find_out()
            self._unseen.pop(feed, None)
            return
        try:
            page = await self._begun(feed)
        except Trimmed as error:
            feed.skip_gap(error.trimmed_upto)
        else:
            # Only this line moves a feed that is behind, so its position is still the one read from;
            # but it may have been stopped, or want other streams, since.
            if not feed.stopped and feed.patterns is patterns:
                if page.more and len(self._ahead) < READ_AHEAD:
                    self._ahead[feed] = _Ahead(page.upto, self._read(feed, page.upto))
                feed.take_page(page.entries, page.upto)

    def _read(self, feed: Feed, after: int) -> asyncio.Future[Page]:
        return asyncio.ensure_future(
            self._log.read_after(feed.patterns, after, limit_bytes=PAGE_BYTES, meta=feed.meta, ahead=True)
        )

    def _begun(self, feed: Feed) -> asyncio.Future[Page]:
        """The page at the feed's position: the one that was read ahead, if it is that."""
        ahead = self._ahead.get(feed)
        if ahead is not None and ahead.after == feed.position:
            return self._ahead.pop(feed).page
        self._forget_ahead(feed)
        return self._read(feed, feed.position)

    def _forget_ahead(self, feed: Feed) -> None:
        ahead = self._ahead.pop(feed, None)
        if ahead is not None and not ahead.page.cancel():
            _look_at_error(ahead.page)


def _look_at_error(done: asyncio.Future[Any]) -> None:
    """Of what nobody waits for any more, so that asyncio does not report it."""
    if not done.cancelled():
        done.exception()


class _Unseen:
    """Shows a reader only what it cannot have from another node that is ahead of this one.

    Its *after* is above this node's position: an entry that it has is still on its way here. Or the log never gave out
    that id, as after a restore, or for somebody who wants what is new, whatever its id: then everything that comes from
    now on is to be shown. The newest id of the log, as it is when the reader comes, tells which.
    """

    __slots__ = ("_after", "_allow", "_left", "_newest", "_upto")

    def __init__(self, after: int, newest: asyncio.Future[int], allow: Allow | None) -> None:
        self._after, self._newest, self._allow = after, newest, allow
        self._upto = after
        self._left = False
        newest.add_done_callback(_look_at_error)

    async def find_out(self) -> None:
        """Wait for the newest id. Before that the reader may not be given anything."""
        await asyncio.wait((self._newest,))  # which raises nothing if the reader leaves meanwhile
        if not self._left:
            self._upto = min(self._after, self._newest.result())

    def forget(self) -> None:
        """The reader has left."""
        self._left = True
        self._newest.cancel()

    def __call__(self, entry: Entry) -> bool:
        return entry.id > self._upto and (self._allow is None or self._allow(entry))


class FoundReaders(dict[str, Collection[Feed]]):
    """Who is offered what comes into the streams of one group of entries, each looked up once."""

    __slots__ = ("_find",)

    def __init__(self, find: Find) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, stream: str) -> Collection[Feed]:
        found = self[stream] = self._find(stream)
        return found


class _Ahead(NamedTuple):
    """A page that is being read before its feed asks for it."""

    after: int
    page: asyncio.Future[Page]
