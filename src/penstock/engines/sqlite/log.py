"""The log on SQLite: the event loop's side. Appends go to the writer, reads to the readers' threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from penstock.core.clock import Clock
from penstock.core.followers import Follower, Followers
from penstock.core.names import check_pattern, is_exact
from penstock.core.promise import Promise, failed
from penstock.core.stamp import check_batch
from penstock.core.wanted_streams import WantedStreams
from penstock.engines.pages import SHORT_ENTRIES, Look, look_within
from penstock.engines.sqlite import retention, stream_pages
from penstock.engines.sqlite.known_streams import KnownStream, KnownStreams, load_by_name
from penstock.engines.sqlite.read_ahead import Ahead, Read, ReplayKind
from penstock.engines.sqlite.reader import SqliteReader
from penstock.engines.sqlite.reader_threads import Readers
from penstock.engines.sqlite.stream_pages import Source
from penstock.engines.sqlite.unfolded_entries import UnfoldedSpots
from penstock.engines.sqlite.writer import SqliteWriter
from penstock.errors import CallerError, NotFound, Trimmed
from penstock.limits import ENTRY_BYTES, PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Draft, Entry, Head, Page, PlainEvent

EXACT_STREAMS = 64
"""Streams that a read by id follows one by one; for more of them, or for patterns, it scans the log."""


class SqliteLog:
    """`core.log.Log` over one file."""

    def __init__(
        self, *, writer: SqliteWriter, readers: Readers, known: KnownStreams, recent: UnfoldedSpots, trimmed_upto: int,
        clock: Clock, server: str, durability: str,
    ) -> None:  # fmt: skip
        self.durability, self.server = durability, server
        self._writer, self._readers, self._known, self._recent = writer, readers, known, recent
        self._clock, self._trimmed_upto = clock, trimmed_upto
        self._ahead = Ahead(readers, clock)

    @property
    def followed(self) -> int:
        return self._writer.followed

    async def newest(self) -> int:
        return self._writer.followed  # nobody else writes, and nobody is told an id before it is followed

    @property
    def trimmed_upto(self) -> int:
        return self._trimmed_upto

    def append(self, batch: Batch) -> Promise[Appended]:
        try:
            weight = check_batch(batch)
        except CallerError as error:
            return failed(error)
        return self._writer.submit_batch(batch, weight)

    def append_event(self, stream: str, body: bytes) -> Promise[Appended]:
        if len(body) > ENTRY_BYTES:
            return self.append(Batch((Draft(stream, body),)))
        return self._writer.submit_event((stream, body))

    def append_many(self, appends: Sequence[PlainEvent | Batch]) -> Promise[list[Entry | Appended | Exception]]:
        """As many appends at once, each by itself: one that is refused has its error in its place.

        A plain event has its entry there, which costs less than an answer; the first of a stream has an answer.
        Those who made the appends have checked them.
        """
        return self._writer.submit_many(appends, sum(map(_weight, appends)))

    @property
    def followers(self) -> Followers:
        return self._writer.followers

    def follow(self, follower: Follower, wanted: WantedStreams | None = None) -> None:
        self.followers.add(follower)

    # ── heads ──────────────────────────────────────────────────────────────────────────────────

    async def head(self, stream: str) -> Head | None:
        known = await self._find(stream)
        return known.head if known else None

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        check_pattern(pattern)
        folded: list[Head] = []
        place: str | None = after
        while place is not None and len(folded) < limit:
            found, place = await self._readers.scan(partial(_heads, pattern, place, limit - len(folded)))
            folded += found
        current = [known.head if (known := self._known.peek(head.stream)) else head for head in folded]
        await self._wait_until_followed(max((head.last_id for head in current), default=0))
        # A stream without any entry was committed a moment ago, and is not known here yet.
        return [head for head in current if head.last_id]

    async def _find(self, stream: str) -> KnownStream | None:
        """A copy of the stream's number and head; it lies within what was followed."""
        known = self._known.peek(stream)
        if known is None:
            loaded = await self._readers.run(lambda reader: load_by_name(reader.connection, [stream]))
            known = self._known.peek(stream) or next((found for found in loaded if found.head.last_id), None)
        if known is None:
            return None
        copy = KnownStream(known.number, known.head)
        await self._wait_until_followed(copy.head.last_id)
        return copy

    async def _wait_until_followed(self, id: int) -> None:
        # The writer has committed it and its call to this loop is on the way, or already waits.
        while id > self._writer.followed:  # noqa: ASYNC110 - an event would cost every append
            await asyncio.sleep(0)

    async def _source(self, stream: str) -> Source:
        known = await self._find(stream)
        if known is None:
            raise NotFound("stream", stream, code="stream_missing")
        return Source(known.number, known.head, self._recent.of(known.number, self.followed), self._trimmed_upto)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────

    async def entry(self, id: int) -> Entry | None:
        look = self._look(1, PAGE_BYTES, True)
        if not self._trimmed_upto < id <= look.upto:
            return None
        entries, _ = await self._readers.run(lambda reader: reader.entries([id], look))
        return entries[0] if entries and id > self._trimmed_upto else None

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        async def read() -> Page:
            source, look = await self._source(stream), self._look(limit, limit_bytes, meta)
            long = limit > SHORT_ENTRIES
            return await self._readers.run(lambda reader: stream_pages.by_index(reader, source, index, look), long=long)

        return await self._steadily(read)

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        async def read() -> Page:
            source, look = await self._source(stream), self._look(limit, limit_bytes, True)
            long = limit > SHORT_ENTRIES
            return await self._readers.run(
                lambda reader: stream_pages.by_cursor(reader, source, chunk, offset, look), long=long
            )

        return await self._steadily(read)

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        wanted = tuple(check_pattern(pattern) for pattern in patterns)

        async def read() -> Page:
            if after < self._trimmed_upto:
                raise Trimmed(after, self._trimmed_upto)
            # First how far, then which streams: one that is made meanwhile has nothing up to there.
            look = self._look(limit, limit_bytes, meta)
            if after >= look.upto:
                return Page((), after, more=False)
            if not ahead:
                page_after = await self._pages(wanted, look)
                if not _are_exact(wanted):
                    return await self._readers.scan(lambda reader: page_after(reader, after))
                return await self._readers.run(lambda reader: page_after(reader, after), long=limit > SHORT_ENTRIES)
            kind = ReplayKind(wanted, look.limit, look.limit_bytes, meta)
            begun = self._ahead.take(kind, after)
            # One that says it is the last was so when its replay began, perhaps not now.
            if begun is not None and (page := await begun).more:
                return page
            return await self._ahead.begin(kind, after, await self._pages(wanted, look))

        return await self._steadily(read)

    async def _pages(self, wanted: tuple[str, ...], look: Look) -> Read:
        """How to read pages of what is wanted, as far as *look* goes."""
        if not _are_exact(wanted):
            return lambda reader, after: stream_pages.by_scan(reader, wanted, after, self._now(look))
        sources = await self._sources(wanted, look.upto)
        return lambda reader, after: stream_pages.by_ids(reader, sources, after, self._now(look))

    async def id_before(self, ms: int) -> int:
        upto = self.followed
        found = await self._readers.run(lambda reader: reader.id_before(ms, upto))
        return max(self._trimmed_upto, found)

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        begin, upto = max(after, self._trimmed_upto), self.followed
        return await self._readers.run(lambda reader: reader.times(begin, upto, limit))

    async def _sources(self, streams: Sequence[str], upto: int) -> list[Source]:
        """Those of *streams* that exist, with what is not folded of them up to an id."""
        found = [known for stream in dict.fromkeys(streams) if (known := await self._find(stream))]
        return [Source(k.number, k.head, self._recent.of(k.number, upto), self._trimmed_upto) for k in found]

    def _look(self, limit: int, limit_bytes: int, meta: bool) -> Look:
        return look_within(self.followed, limit, limit_bytes, meta, self._clock.now_ms())

    def _now(self, look: Look) -> Look:
        return look._replace(now_ms=self._clock.now_ms())

    async def _steadily(self, read: Callable[[], Awaitable[Page]]) -> Page:
        """Read, and once more if the log was trimmed meanwhile: the page might have a hole."""
        while True:
            trimmed_upto = self._trimmed_upto
            page = await read()
            if trimmed_upto == self._trimmed_upto:
                return page

    # ── retention ──────────────────────────────────────────────────────────────────────────────

    async def trim(self, upto: int) -> int:
        upto = min(upto, self.followed)
        if upto <= self._trimmed_upto:
            return 0
        await self._writer.fold_now()  # a head that is not folded is read from its stream's last entry
        before, self._trimmed_upto = self._trimmed_upto, upto  # first, so that no read meets a hole unaware
        self._ahead.forget()
        try:
            gone = await self._trim_slice(upto)
        except BaseException:
            self._trimmed_upto = before
            raise
        total = gone
        while gone:
            gone = await self._trim_slice(upto)
            total += gone
        return total

    async def _trim_slice(self, upto: int) -> int:
        return await self._writer.run(lambda connection: retention.trim_slice(connection, upto))

    async def erase(self, ids: Sequence[int]) -> int:
        chosen, erased = sorted(set(ids)), 0
        try:
            while chosen:
                count = retention.together(chosen)
                erased += await self._writer.run(partial(retention.erase_slice, ids=chosen[:count]))
                chosen = chosen[count:]
        finally:
            self._ahead.forget()
        return erased

    async def expire(self, limit: int = 10_000) -> int:
        now_ms, expired = self._clock.now_ms(), 0
        due = partial(retention.expire_slice, now_ms=now_ms)
        while gone := await self._writer.run(partial(due, limit=limit - expired)):
            expired += gone
        return expired

    async def stored_bytes(self) -> int:
        return await self._readers.run(lambda reader: retention.stored_bytes(reader.connection))


def _weight(append: PlainEvent | Batch) -> int:
    if isinstance(append, tuple):
        return len(append[1])
    return sum([len(draft.body) for draft in append.drafts])


def _are_exact(wanted: tuple[str, ...]) -> bool:
    """A few streams by name: found by their indexes, where patterns need a look at every entry."""
    return len(wanted) <= EXACT_STREAMS and all(map(is_exact, wanted))


def _heads(pattern: str, after: str, limit: int, reader: SqliteReader) -> tuple[list[Head], str | None]:
    return reader.heads(pattern, after, limit)
