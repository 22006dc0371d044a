"""What goes: trimmed and erased entries. Heads and numbering are never touched.

LakeTrimLimit, in an order that is safe at any crash between two steps:

    1. every stream whose last message would go gets a head message above the trim point
    2. a message says up to where the log is trimmed: every node's follower learns of it
    3. JetStream purges entries up to there, and tombstones of these entries are deleted; keys and producers stay

Erasing: a message with the tombstones (and heads, as above), then the deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from penstock.core.clock import Clock
from penstock.engines.jetstream import tombstones
from penstock.engines.jetstream.append_order import GROUP_MESSAGES
from penstock.engines.jetstream.connection import JetStreamRefused
from penstock.engines.jetstream.entry_messages import LogRow, head_facts, payload, row, side_payload
from penstock.engines.jetstream.frames import NatsMessage
from penstock.engines.jetstream.log_stream import Store
from penstock.engines.jetstream.stream_heads import KnownHead, KnownHeads, load
from penstock.engines.jetstream.tombstones import Tombstones
from penstock.values import Kind

ERASED_TOGETHER: Final = 200
"""Entries, with their parts, that one message about tombstones tells of: it must fit into 1 MiB."""

_ABREAST = 64  # streams that are looked at, and heads that are stored, at once
_STALE = 10071
_EXPECT = b"Nats-Expected-Last-Subject-Sequence: %d\r\n"


class JetStreamRetention:
    """Trims and erases for one node."""

    def __init__(
        self, store: Store, known: KnownHeads, buried: Tombstones, clock: Clock,
        until_followed: Callable[[int], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._store, self._known, self._tombstones, self._clock = store, known, buried, clock
        self._connection = store.connection
        self._until_followed = until_followed

    async def trim(self, upto: int) -> int:
        """Drop every entry up to *upto*; return how many messages went."""
        subjects = self._store.subjects
        await self._keep_heads(upto)
        data = side_payload(0, msgspec.msgpack.encode(upto))
        ack = await self._publish([NatsMessage(subjects.trim, data, b"Nats-Rollup: sub\r\n")])
        await self._until_followed(ack)
        gone = await self._store.purge(subjects.entries, upto)
        for seq in self._tombstones.drop(upto):
            await self._store.delete(seq)
        return gone

    async def _keep_heads(self, upto: int) -> None:
        # Streams that come meanwhile lie above the trim point, and none goes: no page leaves one out.
        async for names in self._store.names(self._store.subjects.entries):
            idle = [name for name in names if (known := self._known.get(name)) is None or known.seq <= upto]
            for begin in range(0, len(idle), _ABREAST):
                await asyncio.gather(*(self._keep_head(name, upto) for name in idle[begin : begin + _ABREAST]))

    async def _keep_head(self, stream: str, upto: int) -> None:
        """See to it that the stream's last message lies above the trim point."""
        known = self._known.get(stream)
        while True:
            known = known or await load(self._store, stream)
            if known is None or known.seq > upto:
                return
            try:
                await self._connection.publish(self._head_message(known))
            except JetStreamRefused as refused:
                if refused.code != _STALE:
                    raise refused.told("store what a trim leaves") from refused
                known = None  # somebody was quicker, and the leader knows what it is now
            else:
                return

    def _head_message(self, known: KnownHead, more: int = 0) -> NatsMessage:
        subject = self._store.subjects.entry(known.head.stream)
        return NatsMessage(
            subject, payload(head_facts(known.head, self._clock.now_ms(), more), b""), _EXPECT % known.seq
        )

    async def erase(self, ids: Sequence[int], between: tuple[int, int]) -> int:
        """Turn these data entries and their parts into tombstones; return how many data entries."""
        erased = 0
        chosen = sorted({id for id in ids if between[0] < id <= between[1]})
        for begin in range(0, len(chosen), ERASED_TOGETHER):
            pieces = [rows for id in chosen[begin : begin + ERASED_TOGETHER] if (rows := await self._pieces(id))]
            new = [rows for rows in pieces if self._tombstones.get(rows[0].seq) is None]
            if new:
                await self._bury([row.buried(Kind.ERASED) for rows in new for row in rows])
            erased += len(new)
            # Also those that were buried before: their deletes may have been cut off.
            await asyncio.gather(*map(self._delete, pieces))
        return erased

    async def _pieces(self, id: int) -> list[LogRow]:
        """A data entry and its parts; nothing if there is no such entry."""
        stored = await self._store.at(id)
        if stored is None or self._store.subjects.kind(stored.subject.encode()) != ord("e"):
            return []
        first = row(id, self._store.subjects.name(stored.subject), stored.data)
        if first.facts.kind != Kind.DATA:
            return []
        pieces, begin, last, complete = [first], id + 1, id + first.facts.more, False
        while not complete:  # a server that is behind may have some of them only
            found, complete = await self._store.page(
                stored.subject, begin, last, limit=GROUP_MESSAGES, limit_bytes=1 << 30
            )
            parts = list(takewhile(lambda row: row.facts.kind == Kind.PART, found))
            pieces += parts
            if len(parts) < len(found):
                break
            begin = found[-1].seq + 1 if found else last + 1
        return pieces

    async def _delete(self, pieces: Sequence[LogRow]) -> None:
        """Overwrite an entry and its parts. The entry goes last: without it, what is left would not be found again."""
        first, *parts = pieces
        await asyncio.gather(*(self._store.delete(part.seq) for part in parts))
        await self._store.delete(first.seq)

    async def _bury(self, tombs: list[LogRow]) -> None:
        while True:
            heads = await self._heads_that_go(tombs)
            count = len(heads)
            about = NatsMessage(self._store.subjects.tombstones, side_payload(count, tombstones.encode(tombs)))
            messages = [about, *(self._head_message(known, count - n) for n, known in enumerate(heads, 1))]
            try:
                ack = await self._publish(messages)
            except JetStreamRefused as refused:
                if refused.code != _STALE:
                    raise refused.told("store tombstones") from refused
            else:
                await self._until_followed(ack)
                return

    async def _heads_that_go(self, tombs: Iterable[LogRow]) -> list[KnownHead]:
        """Streams whose last message is among those that go: something else must say how they go on."""
        last = {tomb.stream: tomb.seq for tomb in tombs}
        heads = []
        for stream, seq in last.items():
            known = await load(self._store, stream)
            if known is not None and known.seq <= seq:
                heads.append(known)
        return heads

    async def _publish(self, messages: list[NatsMessage]) -> int:
        name = f"r{self._connection.client._nuid.next().decode()}"
        return (await self._connection.publish_batch(messages, name)).seq
