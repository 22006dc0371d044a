"""Pages of the log: by index, by cursor, by id.

JetStream finds messages by subject and sequence only. An index or a cursor is found by halving the range of
sequences: both only ever rise along a stream. Every read is bounded by what this node has followed, and is
done again if the log was trimmed meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from penstock.core.clock import Clock
from penstock.core.matching import matches
from penstock.core.names import is_exact
from penstock.engines.jetstream.entry_messages import HEAD, LogRow, row
from penstock.engines.jetstream.log_stream import PAGE_MESSAGES, Store
from penstock.engines.jetstream.tombstones import Tombstones
from penstock.engines.pages import fitting, page_of_stream, shown
from penstock.errors import InputInvalid, NotFound, Trimmed
from penstock.limits import PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Entry, Head, Page

SCAN_MESSAGES: Final = 8_192
"""Messages that one read by pattern looks at."""

EXACT_STREAMS: Final = 16
"""Streams that a read by id follows one by one; for more of them it scans the log."""

_ABREAST = 1_024  # messages in one step of a long read


class View:
    """What a read may see: up to where, since where, and what time it is."""

    __slots__ = ("followed", "limit", "limit_bytes", "meta", "now_ms", "trimmed")

    def __init__(self, followed: int, trimmed: int, now_ms: int, limit: int, limit_bytes: int, meta: bool) -> None:
        self.followed, self.trimmed, self.now_ms, self.meta = followed, trimmed, now_ms, meta
        self.limit, self.limit_bytes = min(limit, PAGE_ENTRIES), min(limit_bytes, PAGE_BYTES)

    def shown(self, rows: Sequence[LogRow]) -> list[Entry]:
        """Rows as a reader sees them."""
        return shown((row.entry() for row in rows if row.facts.kind != HEAD), self.now_ms, meta=self.meta)


class JetStreamReader:
    """Reads of one node."""

    def __init__(self, store: Store, tombstones: Tombstones, clock: Clock) -> None:
        self._store, self._tombstones, self._clock = store, tombstones, clock

    # ── by index and cursor ────────────────────────────────────────────────────────────────────

    async def by_index(self, head: Head, index: int, view: View) -> Page:
        begin = await self._search(head.stream, view, lambda row: row.at < index)
        rows = (row async for row in self._rows(head.stream, begin, view) if row.at >= index)
        first: LogRow | None = None
        taken = _Taken(view)
        async for found in rows:
            if first is None:
                first = found
                self._check_begins(first, index, head, view)
            taken.add(found)
            if taken.full:
                break
        if first is None:
            self._check_begins(None, index, head, view)
        return page_of_stream(taken.entries, view.limit, view.limit_bytes, view.followed)

    def _check_begins(self, first: LogRow | None, index: int, head: Head, view: View) -> None:
        begins_there = first is not None and first.at == index and first.is_line
        if index < head.next_index and not begins_there:
            raise Trimmed(view.trimmed - 1, view.trimmed)

    async def by_cursor(self, head: Head, chunk: int, offset: int, view: View) -> Page:
        stream = head.stream
        if not 0 <= chunk <= head.chunk:
            raise NotFound("chunk", f"{stream}:{chunk}", code="chunk_missing")
        if offset < 0:
            raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} is no position", code="cursor_invalid")
        if (chunk, offset) == (head.chunk, head.offset):
            return Page((), view.followed, more=False)
        begin = await self._search(stream, view, lambda row: _position(row) < (chunk, offset))
        first: LogRow | None = None
        taken = _Taken(view)
        async for found in self._rows(stream, begin, view):
            if first is None:
                if not found.is_line or _position(found) < (chunk, offset):
                    continue
                first = found
                if _position(first) != (chunk, offset):
                    break
            if found.facts.chunk != chunk:
                break
            taken.add(found)
            if taken.full:
                break
        if first is None or _position(first) != (chunk, offset):
            return await self._explain(head, chunk, offset, view)
        return page_of_stream(taken.entries, view.limit, view.limit_bytes, view.followed)

    async def _explain(self, head: Head, chunk: int, offset: int, view: View) -> Page:
        """Say why no line begins at a position, unless it is the end of its chunk."""
        stream = head.stream
        end: int | None = head.offset if chunk == head.chunk else await self._end_of(stream, chunk, view)
        if end == offset:
            return Page((), view.followed, more=False)
        oldest = await anext((row async for row in self._rows(stream, view.trimmed + 1, view) if row.is_line), None)
        if end is None or oldest is None or (chunk, offset) < _position(oldest):
            raise Trimmed(view.trimmed - 1, view.trimmed)
        why = f"is beyond the end at {end}" if offset > end else "is inside a line"
        raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} {why}", code="cursor_invalid")

    async def _end_of(self, stream: str, chunk: int, view: View) -> int | None:
        """Where a chunk that is not the last one ends; None if that was trimmed."""
        begin = await self._search(stream, view, lambda row: _position(row) < (chunk + 1, 0))
        last: LogRow | None = None
        # Rotated, the last line of a chunk, is stored right before the next chunk's first.
        async for found in self._rows(stream, max(begin - 2, view.trimmed + 1), view):
            if found.facts.chunk > chunk:
                break
            if found.is_line:
                last = found
        return last.facts.offset + last.facts.size if last else None

    async def _search(self, stream: str, view: View, before: Callable[[LogRow], bool]) -> int:
        """A sequence up to which every message of the stream is *before* what is wanted, and no further one is."""
        subject = self._store.subjects.entry(stream)
        low, high = view.trimmed + 1, view.followed + 1
        while low < high:
            middle = (low + high) // 2
            found = await self._store.first(subject, middle)
            if found is None or found.seq >= high or not before(found):
                high = middle
            else:
                low = found.seq + 1
        return low

    async def _rows(self, stream: str, begin: int, view: View) -> AsyncIterator[LogRow]:
        """Messages and tombstones of a stream from a sequence on, heads left out."""
        subject = self._store.subjects.entry(stream)
        complete, size = False, 32
        while not complete:
            found, complete = await self._store.page(
                subject, begin, view.followed, limit=size, limit_bytes=view.limit_bytes
            )
            end = view.followed if complete else found[-1].seq
            for each in self._with_tombstones(found, begin, end, stream):
                yield each
            begin, size = end + 1, PAGE_MESSAGES

    def _with_tombstones(self, rows: list[LogRow], first: int, last: int, stream: str | None = None) -> list[LogRow]:
        tombs = self._tombstones.between(first, last, stream)
        if tombs:
            hidden = {tomb.seq for tomb in tombs}
            rows = sorted([*(row for row in rows if row.seq not in hidden), *tombs], key=_seq)
        return [row for row in rows if row.facts.kind != HEAD]

    # ── by id ──────────────────────────────────────────────────────────────────────────────────

    async def by_id(self, patterns: tuple[str, ...], after: int, view: View) -> Page:
        if after >= view.followed or not patterns:
            return Page((), max(after, view.followed), more=False)
        if len(patterns) <= EXACT_STREAMS and all(is_exact(pattern) for pattern in patterns):
            rows, upto = await self._of_streams(dict.fromkeys(patterns), after, view)
        else:
            rows, upto = await self._matching(patterns, after, view)
        found = view.shown(rows)
        entries = fitting(found, view.limit, view.limit_bytes)
        if len(entries) < len(found):
            upto = entries[-1].id
        return Page(tuple(entries), upto, more=upto < view.followed)

    async def _matching(self, patterns: tuple[str, ...], after: int, view: View) -> tuple[list[LogRow], int]:
        """Look through the log until there is more than a page, or enough was looked at."""
        subject = self._store.subjects.matching(patterns[0]) if len(patterns) == 1 else self._store.subjects.entries
        found: list[LogRow] = []
        looked = 0
        while after < view.followed and looked < SCAN_MESSAGES and len(found) <= view.limit:
            rows, after = await self.scan(subject, after, view.followed, PAGE_MESSAGES, view.limit_bytes)
            looked += len(rows)
            found += [row for row in rows if any(matches(pattern, row.stream) for pattern in patterns)]
        return found, after

    async def _of_streams(self, streams: dict[str, None], after: int, view: View) -> tuple[list[LogRow], int]:
        rows: list[LogRow] = []
        upto = view.followed
        for stream in streams:
            found, reached = await self.scan(
                self._store.subjects.entry(stream), after, upto, max(view.limit + 1, 32), view.limit_bytes, stream
            )
            rows, upto = rows + found, min(upto, reached)
        return sorted((row for row in rows if row.seq <= upto), key=_seq), upto

    async def scan(
        self, subject: str, after: int, upto: int, limit: int, limit_bytes: int, stream: str | None = None
    ) -> tuple[list[LogRow], int]:
        """Messages after an id, about *limit* of them; and up to where nothing else is."""
        rows: list[LogRow] = []
        begin, size, complete = after + 1, 0, False
        while not complete and len(rows) < limit and size <= limit_bytes:
            found, complete = await self._store.page(
                subject, begin, upto, limit=limit - len(rows), limit_bytes=limit_bytes
            )
            end = upto if complete else found[-1].seq
            rows += self._with_tombstones(found, begin, end, stream)
            size += sum(len(row.body) for row in found)
            begin = end + 1
        return rows, begin - 1

    async def part(self, after: int, upto: int, now_ms: int) -> tuple[list[Entry], int]:
        """The first entries of (after, upto], of all streams and kinds, and up to where these are all."""
        view = View(upto, 0, now_ms, PAGE_ENTRIES, PAGE_BYTES, meta=True)
        rows, after = await self.scan(self._store.subjects.entries, after, upto, _ABREAST, PAGE_BYTES)
        return view.shown(rows), after

    async def one(self, id: int, view: View) -> Entry | None:
        """The entry with this id."""
        if not view.trimmed < id <= view.followed:
            return None
        found = self._tombstones.get(id)
        if found is None:
            stored = await self._store.at(id)
            if stored is None or self._store.subjects.kind(stored.subject.encode()) != ord("e"):
                return None
            found = row(id, self._store.subjects.name(stored.subject), stored.data)
        return next(iter(view.shown([found])), None)

    async def id_before(self, ms: int, view: View) -> int:
        """The id before the first entry that was published at or after a time."""
        low, high = view.trimmed + 1, view.followed + 1
        while low < high:
            middle = (low + high) // 2
            found = await self._store.first(self._store.subjects.entries, middle)
            if found is None or found.seq >= high or found.facts.published_ms >= ms:
                high = middle
            else:
                low = found.seq + 1
        return low - 1

    async def times(self, after: int, view: View) -> list[tuple[int, int]]:
        """Ids and times of the entries after an id; JetStream gives them with their bodies only."""
        after = max(after, view.trimmed)
        rows: list[LogRow] = []
        while not rows and after < view.followed:  # a page may be nothing but heads
            rows, after = await self.scan(
                self._store.subjects.entries, after, view.followed, view.limit, view.limit_bytes
            )
        return [(row.seq, row.facts.published_ms) for row in rows]


def _position(row: LogRow) -> tuple[int, int]:
    return row.facts.chunk, row.facts.offset


def _seq(row: LogRow) -> int:
    return row.seq


class _Taken:
    """What a page of one stream is made of."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._bytes = 0
        self.entries: list[Entry] = []

    def add(self, row: LogRow) -> None:
        for entry in self._view.shown([row]):
            self.entries.append(entry)
            self._bytes += len(entry.body)

    @property
    def full(self) -> bool:
        """One more than a page is here, and it is no part of what is on the page."""
        entries, view = self.entries, self._view
        if len(entries) < 2 or entries[-1].size == 0:
            return False
        return len(entries) > view.limit or self._bytes > view.limit_bytes
