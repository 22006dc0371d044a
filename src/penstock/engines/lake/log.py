"""A log whose older part has gone to the lake: one log to everybody who reads.

          1 ……………………………………… trimmed_upto │ …………………………… followed
          the lake (Iceberg)              │ the engine
                                       the seam

The engine is always asked first. Only when it says `Trimmed` is the lake read, up to the trim point that it named
and not an id further; the next read asks the engine again. So nothing is remembered about the seam, and it may
move at any moment: what was trimmed meanwhile was in the lake before.

`trimmed_upto` stays the engine's: the export that the pipeline archives must not read from the lake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import dropwhile, takewhile

from penstock.core.clock import Clock
from penstock.core.followers import Follower, Followers
from penstock.core.log import Log
from penstock.core.names import check_pattern
from penstock.core.promise import Pending
from penstock.core.wanted_streams import WantedStreams
from penstock.engines.lake.reader import LakeReader
from penstock.engines.pages import Look, look_within
from penstock.errors import InputInvalid, Trimmed
from penstock.limits import BATCH_ENTRIES, PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Entry, Head, Page

HINTS = 4_096
"""Places where a page of one stream ended: the next page begins there, without a search. The oldest are forgotten."""

_Spot = tuple[str, int, int]


class ColdLog:
    """`core.log.Log` over an engine's log and a lake."""

    def __init__(self, hot: Log, lake: LakeReader, clock: Clock) -> None:
        self._hot, self._lake, self._clock = hot, lake, clock
        self.durability, self.server = hot.durability, hot.server
        self._hints: OrderedDict[_Spot, int] = OrderedDict()

    @property
    def followers(self) -> Followers:
        return self._hot.followers

    @property
    def followed(self) -> int:
        return self._hot.followed

    async def newest(self) -> int:
        return await self._hot.newest()

    @property
    def trimmed_upto(self) -> int:
        return self._hot.trimmed_upto

    def append(self, batch: Batch) -> Pending[Appended]:
        return self._hot.append(batch)

    def append_event(self, stream: str, body: bytes) -> Pending[Appended]:
        return self._hot.append_event(stream, body)

    def follow(self, follower: Follower, wanted: WantedStreams | None = None) -> None:
        self._hot.follow(follower, wanted)

    async def head(self, stream: str) -> Head | None:
        return await self._hot.head(stream)

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        return await self._hot.heads(pattern, after=after, limit=limit)

    # ── by id ─────────────────────────────────────────────────────────────────────────────────

    async def entry(self, id: int) -> Entry | None:
        found = await self._hot.entry(id)
        if found is not None or not 0 < id <= self._hot.trimmed_upto:
            return found
        try:
            entries, _ = await self._lake.read(None, id - 1, id, self._look(1, PAGE_BYTES, True))
        except Trimmed:
            return None
        return entries[0] if entries else None

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        try:
            return await self._hot.read_after(
                patterns, after, limit=limit, limit_bytes=limit_bytes, meta=meta, ahead=ahead
            )
        except Trimmed as error:
            return await self._read_cold(patterns, after, error.trimmed_upto, self._look(limit, limit_bytes, meta))

    async def _read_cold(self, patterns: Sequence[str], after: int, seam: int, look: Look) -> Page:
        """A page from the lake that ends at the seam at the latest."""
        wanted = [check_pattern(pattern) for pattern in patterns]
        entries, upto = await self._lake.read(wanted, after, seam, look)
        return Page(tuple(entries), upto, more=upto < self._hot.followed)

    async def id_before(self, ms: int) -> int:
        found = await self._hot.id_before(ms)
        trimmed_upto = self._hot.trimmed_upto
        return found if found > trimmed_upto or not trimmed_upto else await self._lake.id_before(ms, trimmed_upto)

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        return await self._hot.times(after, limit)

    # ── by index and by cursor ────────────────────────────────────────────────────────────────

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        look = self._look(limit, limit_bytes, meta)
        if meta and self._hot.trimmed_upto and (page := await self._with_what_stands_before(stream, index, look)):
            return page
        try:
            return await self._hot.read_index(stream, index, limit=limit, limit_bytes=limit_bytes, meta=meta)
        except Trimmed:
            id = self._hints.get((stream, -1, index)) or await self._lake.find_index(stream, index)
            if id is None:
                raise
            return await self._page(stream, id - 1, look)

    async def _with_what_stands_before(self, stream: str, index: int, look: Look) -> Page | None:
        """A page that begins with the meta entries before *index*, if the lake has the entry that they follow."""
        if index > 0 and await self._is_hot(stream, index - 1):
            return None
        id = await self._lake.find_index(stream, index - 1)
        if id is None or id > self._hot.trimmed_upto:
            return None
        if index == 0:
            return await self._page(stream, id - 1, look)
        return await self._page(stream, id, look, skip_parts=True)

    async def _is_hot(self, stream: str, index: int) -> bool:
        """Whether the engine has that entry: then the lake, which may be away, need not be asked."""
        try:
            return bool((await self._hot.read_index(stream, index, limit=1)).entries)
        except Trimmed:
            return False

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        try:
            return await self._hot.read_cursor(stream, chunk, offset, limit=limit, limit_bytes=limit_bytes)
        except Trimmed:
            id = self._hints.get((stream, chunk, offset)) or await self._find_line(stream, chunk, offset)
            if id is None:
                raise
        if id == 0:
            return Page((), self._hot.followed, more=False)
        page = await self._page(stream, id - 1, self._look(limit, limit_bytes, True))
        inside = tuple(takewhile(lambda entry: entry.chunk == chunk, page.entries))
        if len(inside) == len(page.entries):
            return page
        return Page(inside, self._hot.followed, more=False)

    async def _find_line(self, stream: str, chunk: int, offset: int) -> int | None:
        """The id of the line that begins there; 0 at the end of the chunk; None if the lake knows nothing of it."""
        line = await self._lake.find_line(stream, chunk, offset)
        if line is None:
            return None
        end = line.offset + line.size
        if line.offset == offset:
            return line.id
        if offset == end:
            return 0
        why = f"is beyond the end at {end}" if offset > end else "is inside a line"
        raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} {why}", code="cursor_invalid")

    async def _page(self, stream: str, after: int, look: Look, *, skip_parts: bool = False) -> Page:
        """Entries of one stream after an id, over the seam where need be; never an entry without its parts."""
        followed = self._hot.followed
        head = await self._hot.head(stream)
        last_id = head.last_id if head else 0
        entries: list[Entry] = []
        room = look
        while after < last_id and (not entries or min(room.limit, room.limit_bytes) > 0):
            page = await self._read_stream(stream, after, room)
            entries += dropwhile(_is_part, page.entries) if skip_parts and not entries else page.entries
            room = _room_after(look, entries)
            after = page.upto
        if entries:
            after = await self._add_parts(stream, entries, after, last_id, look)
            self._remember(entries, after)
        return Page(tuple(entries), after, more=True) if after < last_id else Page(tuple(entries), followed, more=False)

    async def _add_parts(self, stream: str, entries: list[Entry], after: int, last_id: int, look: Look) -> int:
        """Add the parts that follow the last entry; return the id up to which was read. All are of one batch."""
        farthest = min(last_id, entries[-1].id + BATCH_ENTRIES)
        while after < farthest:
            page = await self._read_stream(stream, after, look._replace(limit=PAGE_ENTRIES, limit_bytes=PAGE_BYTES))
            parts = list(takewhile(_is_part, page.entries))
            entries += parts
            if len(parts) < len(page.entries):
                return parts[-1].id if parts else after
            after = page.upto
        return after

    async def _read_stream(self, stream: str, after: int, look: Look) -> Page:
        _, limit, limit_bytes, meta, _ = look
        return await self.read_after((stream,), after, limit=limit, limit_bytes=limit_bytes, meta=meta)

    def _remember(self, entries: list[Entry], upto: int) -> None:
        last = next((entry for entry in reversed(entries) if entry.size), None)
        if last is None:
            return
        if last.index is not None:
            self._hints[last.stream, -1, last.index + 1] = upto + 1
        self._hints[last.stream, last.chunk, last.end] = upto + 1
        while len(self._hints) > HINTS:
            self._hints.popitem(last=False)

    def _look(self, limit: int, limit_bytes: int, meta: bool) -> Look:
        return look_within(self.followed, limit, limit_bytes, meta, self._clock.now_ms())

    # ── what changes the log is the engine's ──────────────────────────────────────────────────

    async def trim(self, upto: int) -> int:
        return await self._hot.trim(upto)

    async def erase(self, ids: Sequence[int]) -> int:
        return await self._hot.erase(ids)

    async def expire(self, limit: int = 10_000) -> int:
        return await self._hot.expire(limit)

    async def stored_bytes(self) -> int:
        return await self._hot.stored_bytes()


def _is_part(entry: Entry) -> bool:
    return entry.size == 0


def _room_after(look: Look, entries: list[Entry]) -> Look:
    used = sum(len(entry.body) for entry in entries)
    return look._replace(limit=look.limit - len(entries), limit_bytes=look.limit_bytes - used)
