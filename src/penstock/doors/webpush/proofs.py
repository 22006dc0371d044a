"""Proof that a sent message reached the user agent: the receipts of this very service, heard by the sender.

A push service answers a send long before anybody has the message. Where it is this one, it can say more: a
message that was sent with `Prefer: respond-async` has its outcome written to a stream of receipts
(`receipts.py`), and that stream is fed to the sender like any other.

    webpush/awaited/<digest of the message's URL>     whose entry it is; gone when the outcome is in the ledger

An outcome may be there before we have written down that we wait for it: such ones are kept for a moment. With a
service of somebody else nothing would ever come, and nothing is awaited.

What a push service answers is believed about itself alone: a receipt subscription counts only at the origin of the
endpoint that was sent to, and only if it is one that this installation gave out.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.api.context import Context
from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import Recipient, recipient
from penstock.doors.webpush.receipts import stream_of
from penstock.errors import PenstockError
from penstock.limits import PAGE_ENTRIES
from penstock.values import Entry
from penstock.wire.pushing import Verdict
from penstock.wire.vapid import origin_of

log = logging.getLogger("penstock.webpush")

T = TypeVar("T")
AWAITED: Final = "webpush/awaited/"
_DELIVERED = 204
_DAY_MS = 86_400_000  # an outcome may be late: expired messages are swept now and then
_EARLY = 10_000
_WAITING = 1_000
_KNOWN = 1_024  # receipt subscriptions that are listened to, and services that have one: the oldest go
Spawn = Callable[[Coroutine[None, None, None]], object]


class Awaited(msgspec.Struct, frozen=True):
    """Whose outcome it is."""

    binding: str
    stream: str
    entry: int
    receipt: str  # the id of the receipt subscription


class _Outcome(msgspec.Struct, frozen=True):
    """A line of a receipt subscription."""

    message: str
    status: int


class Proofs:
    """Waits for outcomes, and writes them into the ledger. *runs* says whether a binding is this node's."""

    def __init__(
        self, context: Context, spawn: Spawn, runs: Callable[[str], bool], proved: Callable[[str, bool], None]
    ) -> None:
        self._context, self._spawn, self._runs, self._proved = context, spawn, runs, proved
        self._subscriptions: dict[str, str] = {}  # of each push service, the receipt subscription in use
        self._ids: dict[str, None] = {}  # of the receipt subscriptions that are listened to
        self._feeds: dict[int, Feed] = {}  # by shard
        self.shard_of: Callable[[str], int | None] = lambda _: None
        self._early: dict[str, int] = {}
        self._heard: list[tuple[str, int]] = []
        self._working = False
        self.who: Recipient = recipient("webpush", "sender/receipts")

    async def start(self) -> None:
        """Listen again where something is awaited."""
        after = ""
        while records := await self._context.registry.list(AWAITED, after=after, limit=PAGE_ENTRIES):
            after = records[-1].key
            for record in records:
                self._listen(msgspec.json.decode(record.value, type=Awaited).receipt, after=0)

    def stop(self) -> None:
        """Listen no more."""
        for feed in self._feeds.values():
            feed.stop()
        self._feeds.clear()

    def subscription(self, endpoint: str) -> str:
        """The receipt subscription to name in a send; empty: the service makes one."""
        return self._subscriptions.get(origin_of(endpoint), "")

    async def expect(self, binding: str, entry: Entry, verdict: Verdict, endpoint: str, deadline_ms: int) -> None:
        """Write down whose outcome the message's is; nothing to do when the service gives no receipts of ours."""
        id, origin = verdict.receipt.rpartition("/")[2], origin_of(endpoint)
        if not (_is_at(origin, verdict.receipt) and _is_at(origin, verdict.location)) or self.shard_of(id) is None:
            return
        awaited, digest = Awaited(binding, entry.stream, entry.id, id), _digest(verdict.location)
        expires_ms = max(deadline_ms, self._context.clock.now_ms()) + _DAY_MS
        await self._context.registry.put(AWAITED + digest, msgspec.json.encode(awaited), expires_ms=expires_ms)
        _remember(self._subscriptions, origin, verdict.receipt, _KNOWN)
        self._listen(id, after=0)
        if (status := self._early.pop(digest, None)) is not None:
            self._hear(digest, status)

    def _listen(self, id: str, after: int) -> None:
        shard = self.shard_of(id)
        if shard is not None:
            _remember(self._ids, id, None, _KNOWN)
            if shard not in self._feeds:
                self._feeds[shard] = self._context.hub.start(self, (stream_of(shard),), after=after)

    # ── as the sink of the receipts ───────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """The ledger comes first."""
        return len(self._heard) >= _WAITING

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take outcomes."""
        for entry in entries:
            try:
                outcome = msgspec.json.decode(entry.body, type=_Outcome)
            except msgspec.MsgspecError:
                continue  # erased, or expired
            digest = _digest(outcome.message)
            if entry.type in self._ids:
                self._hear(digest, outcome.status)
            else:
                _remember(self._early, digest, outcome.status, _EARLY)

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """What was trimmed is not known any more: those messages stay `sent`."""

    def failed(self, error: Exception) -> None:
        """The log could not be read; the next start listens again."""
        log.warning("receipts.failed", extra={"error": str(error)})

    # ── into the ledger ───────────────────────────────────────────────────────────────────────

    def _hear(self, digest: str, status: int) -> None:
        self._heard.append((digest, status))
        if not self._working:
            self._working = True
            self._spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._heard:
                heard, self._heard = self._heard, []
                await self._settle(heard)
                for feed in tuple(self._feeds.values()):
                    feed.resume()
        except PenstockError as error:
            log.warning("receipts.not_kept", extra={"error": str(error)})  # they are awaited still: at the next start
        finally:
            self._working = False

    async def _settle(self, heard: list[tuple[str, int]]) -> None:
        """Durable in the ledger first, then awaited no more."""
        registry, settled = self._context.registry, []
        for digest, status in heard:
            record = await registry.get(AWAITED + digest)
            if record is None:
                _remember(self._early, digest, status, _EARLY)  # our answer of the service may not be here yet
                continue
            awaited = msgspec.json.decode(record.value, type=Awaited)
            if self._runs(awaited.binding):
                self._record(awaited, status == _DELIVERED)
                settled.append(record.key)
        if settled:
            await self._context.ledger.flush()
        for key in settled:
            await registry.delete(key)

    def _record(self, awaited: Awaited, delivered: bool) -> None:
        who = recipient("webpush", awaited.binding)
        state, reason = ("acked", "by the user agent") if delivered else ("dropped", "given up by the push service")
        self._context.ledger.record(who, state, awaited.stream, awaited.entry, awaited.entry, reason=reason)
        self._proved(awaited.binding, delivered)


def _remember(known: dict[str, T], key: str, value: T, most: int) -> None:
    """Keep it as the newest; of more than *most* the oldest goes."""
    known.pop(key, None)
    if len(known) >= most:
        del known[next(iter(known))]
    known[key] = value


def _is_at(origin: str, url: str) -> bool:
    """Whether a URL that somebody gave us lies at *origin*."""
    try:
        return origin_of(url) == origin
    except ValueError:
        return False


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]
