"""Proof that a sent message reached the user agent: the receipts of this very service, heard by the sender.

A push service answers a send long before anybody has the message. Where it is this one, it can say more: a message that
was sent with `Prefer: respond-async` has its outcome written to a stream of receipts, and that stream is fed to the
sender like any other.

    webpush/awaited/<digest of the message's URL>     whose entry it is; gone when the outcome is in the ledger

An outcome may be there before we have written down that we wait for it: such ones are kept for a moment. With a
service of somebody else nothing would ever come, and nothing is awaited.

What a push service answers is believed about itself alone: a receipt subscription counts only at the origin of the
endpoint that was sent to, and only if it is one that this installation gave out.

A background loop writes outcomes into the ledger, and feeds again what could not be read, until both work.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.api.context import Context
from penstock.core.background import Loop
from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import Recipient
from penstock.core.registry import each
from penstock.values import Entry
from penstock.wire.vapid import origin_of
from penstock.wire.webpush_sender import Verdict
from penstock.wire.webpush_tokens import EndpointTokens, receipt_stream

log = logging.getLogger("penstock.webpush")

T = TypeVar("T")
AWAITED: Final = "webpush/awaited/"
RETRY_SECONDS = 1.0  # until a feed that failed begins again, or an outcome that could not be kept is tried again
_DELIVERED = 204
_DAY_MS = 86_400_000  # an outcome may be late: expired messages are swept now and then
_EARLY = 10_000
_WAITING = 1_000
_KNOWN = 1_024  # receipt subscriptions that are listened to, and services that have one: the oldest go


class AwaitedReceipt(msgspec.Struct, frozen=True):
    """Whose outcome it is."""

    binding: str
    stream: str
    entry: int
    receipt: str  # the id of the receipt subscription


class ReceiptLine(msgspec.Struct, frozen=True):
    """A line of a receipt subscription."""

    message: str
    status: int


class AwaitedReceipts:
    """Waits for outcomes, and writes them into the ledger. *runs* says whether a binding is this node's."""

    def __init__(
        self,
        context: Context,
        tokens: EndpointTokens,
        runs: Callable[[str], bool],
        proved: Callable[[str], None],
    ) -> None:
        self._context, self._tokens, self._runs, self._proved = context, tokens, runs, proved
        self._subscriptions: dict[str, str] = {}  # of each push service, the receipt subscription in use
        self._ids: dict[str, None] = {}  # of the receipt subscriptions that are listened to
        self._forgot = False  # one of them went, to make room: what is awaited there is found in the registry alone
        self._feeds: dict[str, Feed] = {}  # by stream
        self._early: dict[str, int] = {}
        self._heard: list[tuple[str, int]] = []
        self._wake = asyncio.Event()
        self._loop: Loop | None = None
        self.who: Recipient = Recipient("webpush", "sender/receipts")

    async def start(self) -> None:
        """Listen where something is awaited, as often as it is called."""
        async for record in each(self._context.registry, AWAITED):
            self._listen(msgspec.json.decode(record.value, type=AwaitedReceipt).receipt)
        if self._loop is None:
            background = self._context.background
            self._loop = background.every(RETRY_SECONDS, "webpush.receipts", self._go_on, wake=self._wake)

    async def stop(self) -> None:
        """Listen no more."""
        if self._loop is not None:
            await self._loop.stop()
        for feed in self._feeds.values():
            feed.stop()
        self._feeds.clear()

    def subscription(self, endpoint: str) -> str:
        """The receipt subscription to name in a send; empty: the service makes one."""
        return self._subscriptions.get(origin_of(endpoint), "")

    async def expect(self, binding: str, entry: Entry, verdict: Verdict, endpoint: str, deadline_ms: int) -> None:
        """Write down whose outcome the message's is; nothing to do when the service gives no receipts of ours."""
        id, origin = verdict.receipt.rpartition("/")[2], origin_of(endpoint)
        is_there = _is_at(origin, verdict.receipt) and _is_at(origin, verdict.location)
        if not is_there or self._tokens.receipt_shard(id) is None:
            return
        awaited, digest = AwaitedReceipt(binding, entry.stream, entry.id, id), _digest(verdict.location)
        expires_ms = max(deadline_ms, self._context.clock.now_ms()) + _DAY_MS
        await self._context.registry.put(AWAITED + digest, msgspec.json.encode(awaited), expires_ms=expires_ms)
        _remember(self._subscriptions, origin, verdict.receipt, _KNOWN)
        self._listen(id)
        if (status := self._early.pop(digest, None)) is not None:
            self._hear(digest, status)

    def _listen(self, id: str) -> None:
        shard = self._tokens.receipt_shard(id)
        if shard is not None:
            self._forgot |= _remember(self._ids, id, None, _KNOWN)
            if (stream := receipt_stream(shard)) not in self._feeds:
                self._feeds[stream] = self._context.hub.start(self, (stream,), after=0)

    # ── as the sink of the receipts ───────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """The ledger comes first."""
        return len(self._heard) >= _WAITING

    def deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            try:
                line = msgspec.json.decode(entry.body, type=ReceiptLine)
            except msgspec.MsgspecError:
                continue  # erased, or expired
            digest = _digest(line.message)
            if self._forgot or entry.type in self._ids:
                self._hear(digest, line.status)
            else:
                _remember(self._early, digest, line.status, _EARLY)

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """What was trimmed is not known any more: those messages stay `sent`."""

    def failed(self, error: Exception) -> None:
        """The log could not be read: the loop begins again where the feed was."""
        log.warning("receipts.failed", extra={"error": str(error)})

    # ── into the ledger ───────────────────────────────────────────────────────────────────────

    def _hear(self, digest: str, status: int) -> None:
        self._heard.append((digest, status))
        self._wake.set()

    async def _go_on(self) -> None:
        """One round of the loop."""
        for stream, feed in self._feeds.items():
            if feed.stopped:
                self._feeds[stream] = self._context.hub.start(self, (stream,), after=feed.position)
        while heard := self._heard[:_WAITING]:
            await self._settle(heard)
            del self._heard[: len(heard)]
            for feed in self._feeds.values():
                feed.resume()

    async def _settle(self, heard: list[tuple[str, int]]) -> None:
        """Durable in the ledger first, then awaited no more."""
        registry, settled = self._context.registry, list[AwaitedReceipt]()
        keys = []
        for digest, status in heard:
            record = await registry.get(AWAITED + digest)
            if record is None:
                _remember(self._early, digest, status, _EARLY)  # our answer of the service may not be here yet
                continue
            awaited = msgspec.json.decode(record.value, type=AwaitedReceipt)
            if self._runs(awaited.binding):
                self._record(awaited, delivered=status == _DELIVERED)
                settled += [awaited] if status == _DELIVERED else []
                keys.append(record.key)
        if keys:
            await self._context.ledger.flush()
        for key in keys:
            await registry.delete(key)
        for awaited in settled:
            self._proved(awaited.binding)

    def _record(self, awaited: AwaitedReceipt, *, delivered: bool) -> None:
        who = Recipient("webpush", awaited.binding)
        state, reason = ("acked", "by the user agent") if delivered else ("dropped", "given up by the push service")
        self._context.ledger.record(who, state, awaited.stream, awaited.entry, awaited.entry, reason=reason)


def _remember(known: dict[str, T], key: str, value: T, most: int) -> bool:
    """Keep it as the newest; of more than *most* the oldest goes. Whether one went."""
    known.pop(key, None)
    if full := len(known) >= most:
        del known[next(iter(known))]
    known[key] = value
    return full


def _is_at(origin: str, url: str) -> bool:
    """Whether a URL that somebody gave us lies at *origin*."""
    try:
        return origin_of(url) == origin
    except ValueError:
        return False


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]
