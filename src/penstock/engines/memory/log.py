"""The log in memory: a list of entries, looked through from end to end."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from penstock.core.clock import Clock
from penstock.core.followers import Follower, Followers
from penstock.core.matching import matches
from penstock.core.names import check_pattern
from penstock.core.stamp import check_batch, stamp
from penstock.core.wanted_streams import WantedStreams
from penstock.engines.pages import fitting, is_over, page_of_stream, shown, tombstone
from penstock.engines.repeats import (
    Address,
    addresses,
    check_key,
    first_answer,
    key_address,
    owner_of,
    sequence_address,
)
from penstock.errors import InputInvalid, NotFound, PenstockError, Trimmed
from penstock.limits import KEY_SECONDS, PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Draft, Entry, Head, Kind, Page

SCAN_ENTRIES = 32_768
"""Entries that one `read_after` looks at."""


class MemoryLog:
    """`core.log.Log` as a list of entries."""

    durability = "memory"

    def __init__(self, clock: Clock, server: str) -> None:
        self.server = server
        self._clock = clock
        self._entries: list[Entry] = []
        self._heads: dict[str, Head] = {}
        self._next_id = 1
        self._answers: dict[Address, tuple[bytes, Appended, int]] = {}
        self._last_sequences: dict[tuple[str, str], tuple[int, Appended]] = {}  # of a subject's producer
        self.followers = Followers()
        self._followed = 0
        self._trimmed_upto = 0

    @property
    def followed(self) -> int:
        return self._followed

    async def newest(self) -> int:
        return self._followed  # nobody else writes, and nobody is told an id before it is followed

    @property
    def trimmed_upto(self) -> int:
        return self._trimmed_upto

    # ── append ─────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        try:
            check_batch(batch)
            entries, appended = self._store(batch)
        except (PenstockError, ValueError) as error:
            future.set_exception(error)
        else:
            loop.call_soon(self._acknowledge, entries, appended, future)
        return future

    def follow(self, follower: Follower, wanted: WantedStreams | None = None) -> None:
        self.followers.add(follower)

    def append_event(self, stream: str, body: bytes) -> asyncio.Future[Appended]:
        return self.append(Batch((Draft(stream, body),)))

    def _store(self, batch: Batch) -> tuple[list[Entry], Appended]:
        now_ms = self._clock.now_ms()
        if first := self._first_answer(batch, now_ms):
            return [], replace(first, repeated=True)
        stamped = stamp(batch, self._heads.get, next_id=self._next_id, now_ms=now_ms, server=self.server)
        self._next_id += len(stamped.entries)
        self._entries += stamped.entries
        self._heads |= stamped.heads
        for address, digest in addresses(batch):
            self._answers[address] = (digest, stamped.appended, now_ms)
        if producer := batch.producer:
            self._last_sequences[owner_of(producer)] = (producer.sequence, stamped.appended)
        return stamped.entries, stamped.appended

    def _first_answer(self, batch: Batch, now_ms: int) -> Appended | None:
        """What was answered when this batch came for the first time: kept for a day, a producer's last for ever."""
        if key := batch.key:
            digest, answer = self._answer(key_address(key), now_ms)
            if answer:
                check_key(key, digest)
                return answer
        if producer := batch.producer:
            sequence, last = self._last_sequences.get(owner_of(producer), (0, None))
            if last and producer.sequence <= sequence:
                known = self._answer(sequence_address(producer), now_ms)[1]
                return first_answer(batch, producer, known, sequence, last)
        return None

    def _answer(self, address: Address, now_ms: int) -> tuple[bytes, Appended | None]:
        digest, answer, made_ms = self._answers.get(address, (b"", None, 0))
        return (digest, answer) if made_ms > now_ms - KEY_SECONDS * 1000 else (b"", None)

    def _acknowledge(self, entries: list[Entry], appended: Appended, future: asyncio.Future[Appended]) -> None:
        if entries:
            self.followers.tell(entries)
            self._followed = entries[-1].id
        if not future.done():
            future.set_result(appended)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────

    async def head(self, stream: str) -> Head | None:
        return self._heads.get(stream)

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        check_pattern(pattern)
        names = sorted((name for name in self._heads if matches(pattern, name)), key=str.encode)
        return [self._heads[name] for name in names if name.encode() > after.encode()][:limit]

    async def entry(self, id: int) -> Entry | None:
        found = [entry for entry in self._entries if entry.id == id <= self._followed]
        return next(iter(self._shown(found, meta=True)), None)

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        head = self._existing(stream)
        found = [(at, entry) for at, entry in self._indexed(head) if at >= index]
        begins_there = bool(found) and found[0][0] == index and found[0][1].size > 0
        if index < head.next_index and not begins_there:
            raise Trimmed(self._trimmed_upto - 1, self._trimmed_upto)
        return page_of_stream(self._shown([entry for _, entry in found], meta=meta), limit, limit_bytes, self._followed)

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        head = self._existing(stream)
        if not 0 <= chunk <= head.chunk:
            raise NotFound("chunk", f"{stream}:{chunk}", code="chunk_missing")
        if offset < 0:
            raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} is no position", code="cursor_invalid")
        lines = [entry for entry in self._of(stream) if entry.size]
        end = head.offset if chunk == head.chunk else max((e.end for e in lines if e.chunk == chunk), default=None)
        if offset == end:
            return Page((), self._followed, more=False)
        first = next((line for line in lines if (line.chunk, line.offset) == (chunk, offset)), None)
        if first is None:
            self._explain(lines, stream, chunk, offset, end)
        found = [entry for entry in self._of(stream) if first and entry.id >= first.id and entry.chunk == chunk]
        return page_of_stream(self._shown(found, meta=True), limit, limit_bytes, self._followed)

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        wanted = [check_pattern(pattern) for pattern in patterns]
        if after < self._trimmed_upto:
            raise Trimmed(after, self._trimmed_upto)
        begin = bisect_right(self._entries, after, key=lambda entry: entry.id)
        looked = [e for e in self._entries[begin : begin + SCAN_ENTRIES] if e.id <= self._followed]
        found = [e for e in self._shown(looked, meta=meta) if any(matches(p, e.stream) for p in wanted)]
        upto = looked[-1].id if len(looked) == SCAN_ENTRIES else max(after, self._followed)
        entries = fitting(found, limit, limit_bytes)
        if len(entries) < len(found):
            upto = entries[-1].id
        return Page(tuple(entries), upto, more=upto < self._followed)

    async def id_before(self, ms: int) -> int:
        before = (e.id for e in self._entries if e.published_ms < ms and e.id <= self._followed)
        return max(before, default=self._trimmed_upto)

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        begin = bisect_right(self._entries, after, key=lambda entry: entry.id)
        return [(e.id, e.published_ms) for e in self._entries[begin : begin + limit] if e.id <= self._followed]

    def _existing(self, stream: str) -> Head:
        if stream not in self._heads:
            raise NotFound("stream", stream, code="stream_missing")
        return self._heads[stream]

    def _of(self, stream: str) -> list[Entry]:
        return [entry for entry in self._entries if entry.stream == stream and entry.id <= self._followed]

    def _indexed(self, head: Head) -> list[tuple[int, Entry]]:
        """A stream's entries, each with the index that it stands at.

        That is its own; of a meta entry the next data entry's, of a part its first piece's.
        """
        found: list[tuple[int, Entry]] = []
        following = head.next_index
        for entry in reversed(self._of(head.stream)):
            if entry.index is not None:
                following = entry.index
            at = following if entry.size else following - 1
            found.append((at, entry))
        return found[::-1]

    def _explain(self, lines: list[Entry], stream: str, chunk: int, offset: int, end: int | None) -> None:
        """Say why no line begins at a position."""
        if end is None or (lines and (chunk, offset) < (lines[0].chunk, lines[0].offset)) or not lines:
            raise Trimmed(self._trimmed_upto - 1, self._trimmed_upto)
        why = f"is beyond the end at {end}" if offset > end else "is inside a line"
        raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} {why}", code="cursor_invalid")

    def _shown(self, entries: Iterable[Entry], *, meta: bool) -> list[Entry]:
        return shown(entries, self._clock.now_ms(), meta=meta)

    # ── retention ──────────────────────────────────────────────────────────────────────────────

    async def trim(self, upto: int) -> int:
        upto = min(upto, self._followed)
        before = len(self._entries)
        self._trimmed_upto = max(upto, self._trimmed_upto)
        self._entries = [entry for entry in self._entries if entry.id > upto]
        return before - len(self._entries)

    async def erase(self, ids: Sequence[int]) -> int:
        chosen = {(e.stream, e.index) for e in self._entries if e.id in ids and e.kind is Kind.DATA}
        self._bury(chosen, Kind.ERASED)
        return len(chosen)

    async def expire(self, limit: int = 10_000) -> int:
        now_ms = self._clock.now_ms()
        due = [e for e in self._entries if e.kind is Kind.DATA and is_over(e, now_ms)][:limit]
        self._bury({(entry.stream, entry.index) for entry in due}, Kind.EXPIRED)
        return len(due)

    def _bury(self, chosen: set[tuple[str, int | None]], kind: Kind) -> None:
        """Turn these data entries, and the parts after them, into tombstones."""
        last: dict[str, int | None] = {}
        for place, entry in enumerate(self._entries):
            if entry.kind is not Kind.PART:
                last[entry.stream] = entry.index
            if (entry.stream, last.get(entry.stream)) in chosen and entry.kind in (Kind.DATA, Kind.PART):
                self._entries[place] = tombstone(entry, kind)

    async def stored_bytes(self) -> int:
        return sum(len(entry.body) for entry in self._entries)
