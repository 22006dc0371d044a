"""The messages that are stored for user agents, and what the ledger hears of them.

Which earlier one a message replaces is decided in `wire/webpush.py` (`to_item`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.api.context import Context
from penstock.core.ledger import Recipient
from penstock.doors.webpush.receipts import GONE, Receipts
from penstock.errors import NotFound
from penstock.values import Item, Room
from penstock.wire.webpush import PushMessage, receipt_of, to_item


class Messages:
    """Stores messages and says what became of them. *start* has work done in a task."""

    def __init__(
        self,
        context: Context,
        receipts: Receipts,
        room: Room,
        start: Callable[[Coroutine[Any, Any, object]], asyncio.Task[object]],
    ) -> None:
        self.mailbox, self.receipts, self.room = context.mailbox, receipts, room
        self.counts: Counter[str] = Counter()
        self._ledger, self._clock, self._start = context.ledger, context.clock, start
        self._turns = TurnByAgent()
        self._flush_running: asyncio.Task[object] | None = None
        self._flush_waiting: asyncio.Task[object] | None = None

    # ── the ledger ────────────────────────────────────────────────────────────────────────────

    def record(
        self, who: Recipient, state: str, version: str, month: str = "", number: int = 0, reason: str = "",
        expires_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Tell the ledger what happened to a message."""
        self._ledger.record_item(who, state, version, month, number, reason=reason, expires_ms=expires_ms)

    async def flushed(self) -> None:
        """Return when all that was recorded before the call is durable.

        Acks of many user agents share a write: while one is under way, all who come wait for the next.
        """
        if self._flush_waiting is None:
            self._flush_waiting = self._start(self._flush(self._flush_running))
        await asyncio.shield(self._flush_waiting)

    async def _flush(self, before: asyncio.Task[object] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._flush_running, self._flush_waiting = self._flush_waiting, None
        await self._ledger.flush()

    # ── storing ───────────────────────────────────────────────────────────────────────────────

    async def store(self, uaid: str, month: str, messages: Sequence[PushMessage], *, room: Room | None = None) -> None:
        """Put messages into the user agent's mailbox of that month.

        `NotFound` if the month is gone, `MailboxFull` if there has to be *room* and is none.
        """
        if any(message.topic for message in messages):
            # One after the other, so that each knows which one it has replaced.
            async with self._turns.of(uaid):
                await self._store(uaid, month, messages, room)
        else:
            await self._store(uaid, month, messages, room)

    async def _store(self, uaid: str, month: str, messages: Sequence[PushMessage], room: Room | None) -> None:
        replaced: dict[int, Item] = {}
        for message in messages:
            if message.topic:
                item = await self.mailbox.edition(uaid, month, message.channel, message.topic)
                replaced |= {} if item is None else {item.number: item}
        items = await self.mailbox.put(uaid, month, [to_item(message) for message in messages], room=room)
        self.stored(Recipient("webpush", uaid), month, items)
        for item in replaced.values():
            is_over = item.expires_ms is not None and item.expires_ms <= self._clock.now_ms()
            await self.gone(uaid, month, item, "expired" if is_over else "dropped", "" if is_over else "replaced")

    def stored(self, who: Recipient, month: str, items: Sequence[Item]) -> None:
        """Note that these are in a user agent's mailbox."""
        for item in items:
            self.record(who, "stored", item.message_id, month, item.number, expires_ms=item.expires_ms)
        self.counts["stored"] += len(items)

    # ── what will not arrive ──────────────────────────────────────────────────────────────────

    async def forget(self, uaid: str, month: str, reason: str) -> None:
        """Delete the user agent's mailbox of that month, and say so."""
        try:
            await self.note_gone(uaid, month, reason)
            await self.mailbox.forget(uaid, month)
        except NotFound:
            return

    async def note_gone(self, uaid: str, month: str, reason: str, channel: str = "") -> None:
        """Record that what is pending, of one channel or all, will never arrive."""
        after = 0
        while page := await self.mailbox.take(uaid, month, after=after):
            after = page[-1].number
            for item in page:
                if channel in ("", item.channel):
                    await self.gone(uaid, month, item, "dropped", reason)

    async def gone(self, uaid: str, month: str, item: Item, state: str, reason: str = "") -> None:
        """A stored message will not arrive: say so in the ledger, and to who wants a receipt."""
        door = uaid.partition("/")[0] if "/" in uaid else "webpush"  # the months are everybody's
        self.record(Recipient(door, uaid), state, item.message_id, month, item.number, reason)
        if door == "webpush":
            await self._say_gone(item)

    async def discard(self, uaid: str, month: str, numbers: Sequence[int]) -> None:
        """Delete what the ledger has as dropped already."""
        for item in await self.mailbox.confirm(uaid, month, numbers):
            await self._say_gone(item)

    async def _say_gone(self, item: Item) -> None:
        if receipt := receipt_of(item):
            await self.receipts.report(receipt, item.message_id, GONE)

    async def cancel(self, uaid: str, month: str, id: str) -> None:
        """Delete the message with this id, if it is stored there."""
        try:
            item = await self.mailbox.find(uaid, month, id)
            if item is not None and await self.mailbox.confirm(uaid, month, [item.number]):
                await self.gone(uaid, month, item, "dropped", "cancelled")
        except NotFound:
            return

    async def sweep(self) -> None:
        """Delete messages whose time has run out, and say so."""
        for month in await self.mailbox.months():
            while gone := await self.mailbox.expire(month):
                for uaid, item in gone:
                    await self.gone(uaid, month, item, "expired")
                    self.counts["expired"] += 1


class TurnByAgent:
    """Lets one at a time do something about a user agent."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # and how many want it

    @asynccontextmanager
    async def of(self, uaid: str) -> AsyncIterator[None]:
        """Wait for the turn, and have it in the block."""
        lock, wanted = self._locks.get(uaid) or (asyncio.Lock(), 0)
        self._locks[uaid] = (lock, wanted + 1)
        try:
            async with lock:
                yield
        finally:
            lock, wanted = self._locks.pop(uaid)
            if wanted > 1:
                self._locks[uaid] = (lock, wanted - 1)
