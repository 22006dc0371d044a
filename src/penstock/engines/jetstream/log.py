"""The log on JetStream: what a node's callers see of it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Self

import msgspec

from penstock.core.background import Background
from penstock.core.clock import Clock
from penstock.core.followers import Follower as Callee
from penstock.core.followers import Followers
from penstock.core.names import check_pattern
from penstock.core.stamp import check_batch
from penstock.core.wanted_streams import WantedStreams
from penstock.engines.jetstream import tombstones
from penstock.engines.jetstream.appending import Appender
from penstock.engines.jetstream.connection import REQUEST_SECONDS
from penstock.engines.jetstream.entry_messages import HEAD, LogRow, Side, row
from penstock.engines.jetstream.follower import Follower, Message
from penstock.engines.jetstream.log_stream import Store
from penstock.engines.jetstream.newest_messages import PATIENCE_SECONDS
from penstock.engines.jetstream.reading import JetStreamReader, View
from penstock.engines.jetstream.retention import JetStreamRetention
from penstock.engines.jetstream.stream_heads import KnownHead, KnownHeads, SortedNames, load
from penstock.engines.jetstream.tombstones import Tombstones
from penstock.errors import CallerError, EngineGone, NotFound, Trimmed
from penstock.limits import PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Draft, Entry, Head, Kind, Page

EXPIRING: Final = 1_000_000
"""Entries whose expiry this node will count. Over it: further ones expire uncounted; reads hide them all the same."""

_PASSED_AT_ONCE = 1_000  # due entries that are counted before the loop may do something else
_LETTERS = {ord("s"): "subscribers", ord("x"): "tombstones", ord("c"): "trim"}


class JetStreamLog:
    """`core.log.Log` over one JetStream stream. Lives in `async with`."""

    def __init__(
        self, store: Store, background: Background, *, clock: Clock, server: str, durability: str, queue: int,
        queue_bytes: int,
    ) -> None:  # fmt: skip
        self.durability, self.server, self._background = durability, server, background
        self._store, self._clock = store, clock
        self._queue = (queue, queue_bytes)
        self._known = KnownHeads()
        self._tombstones = Tombstones()
        self._reader = JetStreamReader(store, self._tombstones, clock)
        self._retention = JetStreamRetention(store, self._known, self._tombstones, clock, self._until_followed)
        self.followers = Followers()
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap by id
        self._waiter = 0
        self._expiring: list[tuple[int, int]] = []  # a heap: when, id
        self._followed = self._trimmed_upto = 0

    async def __aenter__(self) -> Self:
        self._followed = await self._end()
        self._trimmed_upto = await self._stored_trim()
        await self._tombstones.load(self._store)
        self._appender = Appender(
            self._store, self._known, self._background, clock=self._clock, server=self.server, queue=self._queue[0],
            queue_bytes=self._queue[1], followed=self._followed,
        )  # fmt: skip
        self._follower = Follower(self._store, self._take, self._followed, self._background)
        await self._appender.__aenter__()
        await self._follower.__aenter__()
        self._store.patience = PATIENCE_SECONDS
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._follower.__aexit__(*error)
        await self._appender.__aexit__(*error)

    async def _end(self) -> int:
        """The sequence of the last message; if a batch is being stored, of its last message."""
        last = (await self._store.state()).last_seq
        found = await self._store.at(last)
        if found is None:
            return last
        if self._store.subjects.kind(found.subject.encode()) == ord("e"):
            return last + row(last, "", found.data).facts.more
        return last + int.from_bytes(found.data[:2], "big")

    async def _stored_trim(self) -> int:
        found = await self._store.last(self._store.subjects.trim)
        return msgspec.msgpack.decode(found.data[2:], type=int) if found else 0

    @property
    def followed(self) -> int:
        return self._followed

    async def newest(self) -> int:
        return max(self._followed, await self._end())  # other nodes write, too

    @property
    def trimmed_upto(self) -> int:
        return self._trimmed_upto

    @property
    def queued(self) -> int:
        """Entries that wait to be stored."""
        return self._appender.entries

    @property
    def trouble(self) -> str:
        """Why this node should get no requests now; empty when all is well."""
        if self._appender.stuck:
            return "NATS does not store: too few of its servers may be up for the log to have a leader"
        return self._follower.trouble

    # ── append and follow ──────────────────────────────────────────────────────────────────────

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        try:
            size = check_batch(batch)
        except CallerError as error:
            future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future
        return self._appender.submit(batch, size)

    def append_event(self, stream: str, body: bytes) -> asyncio.Future[Appended]:
        return self.append(Batch((Draft(stream, body),)))

    def follow(self, follower: Callee, wanted: WantedStreams | None = None) -> None:
        self.followers.add(follower)

    def _take(self, messages: list[Message]) -> None:
        """Whole batches, in order of id: they become visible here."""
        entries: list[Entry] = []
        batch: list[Message] = []
        for message in messages:
            batch.append(message)
            if not message.more:
                self._take_batch(batch, entries)
                batch = []
        if entries:
            self.followers.tell(entries)
        self._followed = messages[-1].seq
        self._appender.followed(self._followed)
        while self._waiters and self._waiters[0][0] <= self._followed:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)

    def _take_batch(self, batch: list[Message], entries: list[Entry]) -> None:
        rows: dict[str, LogRow] = {}
        subscribers: dict[str, tuple[str, ...]] = {}
        nonce = 0
        for message in batch:
            if isinstance(message, Side):
                self._take_side(message, subscribers)
                continue
            if message.facts.kind == HEAD:
                self._known.moved(message.stream, message.seq)
                continue
            rows[message.stream] = message
            nonce = message.facts.nonce
            entries.append(message.entry())
            expires = message.facts.expires_ms
            if expires is not None and message.facts.kind == Kind.DATA and len(self._expiring) < EXPIRING:
                heapq.heappush(self._expiring, (expires, message.seq))
        end = batch[-1].seq
        for newest in rows.values():
            self._learn(newest, subscribers.get(newest.stream), end)
        if nonce:
            self._appender.sighted(nonce, batch[0].seq)

    def _learn(self, newest: LogRow, subscribers: tuple[str, ...] | None, end: int) -> None:
        """Keep the head that follows from a stream's newest entry, if it says all."""
        known = self._known.get(newest.stream)
        if known is not None and known.seq >= newest.seq:
            return
        if not newest.facts.subscribed:
            subscribers = ()
        elif subscribers is None:
            if known is None:
                return
            subscribers = known.head.subscribers
        self._known.put(KnownHead(newest.head(subscribers), newest.seq, end))

    def _take_side(self, side: Side, subscribers: dict[str, tuple[str, ...]]) -> None:
        match _LETTERS.get(self._store.subjects.kind(side.subject.encode())):
            case "subscribers":
                name = self._store.subjects.name(side.subject)
                subscribers[name] = msgspec.msgpack.decode(side.data, type=tuple[str, ...])
            case "tombstones":
                self._tombstones.add(side.seq, tombstones.decode(side.data))
            case "trim":
                self._trimmed_upto = max(self._trimmed_upto, msgspec.msgpack.decode(side.data, type=int))

    async def _until_followed(self, id: int) -> None:
        """Wait until this node has passed *id*."""
        if id <= self._followed:
            return
        self._waiter += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (id, self._waiter, future))
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await future
        except TimeoutError:
            raise EngineGone(f"this node has not followed the log to id {id:,} yet") from None

    # ── heads ──────────────────────────────────────────────────────────────────────────────────

    async def head(self, stream: str) -> Head | None:
        known = self._known.get(stream)
        if known is None:
            loaded = await load(self._store, stream)
            if loaded is not None:
                await self._until_followed(loaded.batch_end)
                self._known.put(loaded)
            known = self._known.get(stream) or loaded
        if known is None:
            return None
        await self._until_followed(known.batch_end)
        return known.head

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        check_pattern(pattern)
        if self._known.names is None:
            # Streams that come while the list is on its way are put into it from the heads in memory.
            loaded = [name async for page in self._store.names(self._store.subjects.entries) for name in page]
            self._known.names = SortedNames([*loaded, *self._known.all_names()])
        names = self._known.names.page(pattern, after, limit)
        found: list[Head | None] = []
        for begin in range(0, len(names), 64):
            found += await asyncio.gather(*(self.head(name) for name in names[begin : begin + 64]))
        return [head for head in found if head is not None]

    async def _existing(self, stream: str) -> Head:
        head = await self.head(stream)
        if head is None:
            raise NotFound("stream", stream, code="stream_missing")
        return head

    # ── reads ──────────────────────────────────────────────────────────────────────────────────

    async def entry(self, id: int) -> Entry | None:
        found = await self._reader.one(id, self._view(1, PAGE_BYTES, True))
        return found if id > await self._refreshed_trim() else None

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        async def read() -> Page:
            head = await self._existing(stream)
            return await self._reader.by_index(head, index, self._view(limit, limit_bytes, meta))

        return await self._steadily(read)

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        async def read() -> Page:
            head = await self._existing(stream)
            return await self._reader.by_cursor(head, chunk, offset, self._view(limit, limit_bytes, True))

        return await self._steadily(read)

    async def read_after(
        self, patterns: Sequence[str], after: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES,
        meta: bool = False, ahead: bool = False,
    ) -> Page:  # fmt: skip
        wanted = tuple(check_pattern(pattern) for pattern in patterns)

        async def read() -> Page:
            if after < self._trimmed_upto:
                raise Trimmed(after, self._trimmed_upto)
            return await self._reader.by_id(wanted, after, self._view(limit, limit_bytes, meta))

        if after >= self._followed:
            return await read()
        return await self._steadily(read)

    async def pages(self, after: int, upto: int) -> AsyncIterator[list[Entry]]:
        """Every entry of (after, upto], which this node has followed; `Trimmed` if some are gone."""
        while after < upto:
            begin = after
            found, after = await self._reader.part(begin, upto, self._clock.now_ms())
            if begin < await self._refreshed_trim():
                raise Trimmed(begin, self._trimmed_upto)
            yield found

    async def id_before(self, ms: int) -> int:
        return await self._reader.id_before(ms, self._view(1, PAGE_BYTES, True))

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        return await self._reader.times(after, self._view(limit, PAGE_BYTES, True))

    def _view(self, limit: int, limit_bytes: int, meta: bool) -> View:
        return View(self._followed, self._trimmed_upto, self._clock.now_ms(), limit, limit_bytes, meta)

    async def _steadily(self, read: Callable[[], Awaitable[Page]]) -> Page:
        """Read, and once more if the log was trimmed meanwhile: the page might have a hole."""
        while True:
            before = self._trimmed_upto
            page = await read()
            if before == await self._refreshed_trim():
                return page

    async def _refreshed_trim(self) -> int:
        """The trim point, as the leader knows it: another node may have trimmed what this one just read."""
        self._trimmed_upto = max(self._trimmed_upto, await self._stored_trim())
        return self._trimmed_upto

    # ── retention ──────────────────────────────────────────────────────────────────────────────

    async def trim(self, upto: int) -> int:
        upto = min(upto, self._followed)
        if upto <= self._trimmed_upto:
            return 0
        return await self._retention.trim(upto)

    async def erase(self, ids: Sequence[int]) -> int:
        return await self._retention.erase(ids, (self._trimmed_upto, self._followed))

    async def expire(self, limit: int = 10_000) -> int:
        """Count the entries whose time has run out since this node began to follow.

        Nothing is left to do for them: reads hide their bodies, and trimming frees the space.
        """
        now_ms, count, passed = self._clock.now_ms(), 0, 0
        while self._expiring and self._expiring[0][0] <= now_ms and count < limit:
            _, id = heapq.heappop(self._expiring)
            count += id > self._trimmed_upto
            passed += 1
            if passed % _PASSED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return count

    async def stored_bytes(self) -> int:
        return (await self._store.state()).bytes
