"""A browser's subscription bound to a stream: every entry is sent once it is there, in order, until it is too old.

The position is written after each entry is settled, so a crash repeats at most the entry that was on its way.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import Recipient, recipient
from penstock.core.names import is_system
from penstock.doors.webpush.courier import Courier
from penstock.doors.webpush.proofs import Proofs
from penstock.doors.webpush.services import Service
from penstock.errors import Forbidden, PenstockError
from penstock.http.wheel import Timed
from penstock.values import Entry, Kind
from penstock.wire.pushing import Outcome, PushSubscription, Receiver, Verdict, Wish, check_subscription, deadline_ms
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.webpush")

POSITIONS = "webpush/positions/"
_FENCED_SECONDS = 1.0
_HELD = 16
"""Entries that a binding holds. A page of the log has a thousand: ten thousand bindings that wait for a service
that is down must not keep one each."""


class Kept(msgspec.Struct):
    """A binding as the registry keeps it, with what its owner could read when it was made."""

    stream: str
    subscription: PushSubscription
    ttl: int
    urgency: str
    topic: str
    allow_private: bool
    owner: str
    admin: bool
    subscribe: tuple[str, ...]
    created_ms: int
    after: int  # entries after this id are sent
    receipts: bool = False  # ask the push service what becomes of each

    def caller(self) -> Caller:
        return Caller(self.owner, self.admin, (), self.subscribe)


def binding_id(stream: str, endpoint: str) -> str:
    """The same for the same pair: to bind again changes the binding that is there."""
    return hashlib.sha256(f"{stream}\n{endpoint}".encode()).hexdigest()[:16]


def encode_position(kept: Kept, position: int) -> bytes:
    """A position says which binding it is of: one that was made anew begins where it was told to."""
    return b"%d %d" % (kept.created_ms, position)


def decode_position(kept: Kept, value: bytes) -> int:
    """Where this binding goes on."""
    created, _, position = value.partition(b" ")
    return int(position) if int(created) == kept.created_ms else kept.after


@dataclass(frozen=True, slots=True)
class Means:
    """What all bindings of a node send with."""

    context: Context
    courier: Courier
    proofs: Proofs
    retry: RetryPolicy
    unbind: Callable[[Binding], Awaitable[None]]  # called when the push service says that nobody is there
    may: Callable[[str], bool]  # whether this node has the duty to send for the binding of this id


class Status:
    """What can be seen of a binding from outside."""

    __slots__ = ("acked", "dropped", "error", "error_ms", "failures", "sent")

    def __init__(self) -> None:
        self.sent = self.acked = self.dropped = 0
        self.failures = 0  # in a row
        self.error = ""
        self.error_ms: int | None = None


class Binding(Timed):
    """The sink of one feed."""

    __slots__ = (
        "_closed", "_context", "_cut", "_means", "_receiver", "_waiting", "feed", "id", "kept", "paused", "position",
        "removed", "service", "status", "who",
    )  # fmt: skip

    feed: Feed

    def __init__(self, id: str, kept: Kept, position: int, service: Service, means: Means) -> None:
        super().__init__()
        self.id, self.kept, self.position = id, kept, position
        self.service, self._means, self._context = service, means, means.context
        self._receiver: Receiver = check_subscription(kept.subscription)
        self._waiting: deque[Entry] = deque()
        self.paused = False  # waits for its time
        self._cut = False  # there was more than it holds: it reads again from its position
        self._closed = False
        self.removed = False  # nothing may be written about it any more
        self.status = Status()
        self.who: Recipient = recipient("webpush", id)

    def start(self) -> None:
        """Begin to read where it was."""
        owner = self.kept.caller()
        try:
            check = owner.check_subscribe(self.kept.stream)
        except Forbidden:
            check = owner.may_read  # it was made when that right went further: nothing comes
        allow = None if check is None else lambda entry: check(entry.stream)
        self._cut = False
        self.feed = self._context.hub.start(self, (self.kept.stream,), after=self.position, allow=allow)
        if self._cut:
            self.feed.stop()

    def stop(self) -> None:
        """End it. What is on its way is finished."""
        self._closed = True
        self.feed.stop()
        self._context.wheel.forget(self)
        self._waiting.clear()

    def change(self, kept: Kept) -> None:
        """The browser has other keys now, or the owner other wishes."""
        self.kept, self._receiver = kept, check_subscription(kept.subscription)

    # ── as the feed's sink ────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """One page at a time: the log keeps the rest."""
        return bool(self._waiting)

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Take what is to be sent, as much of it as is held."""
        if self._cut:
            return
        wanted = [entry for entry in entries if entry.kind is Kind.DATA]
        room = _HELD - len(self._waiting)
        self._waiting.extend(wanted[:room])
        if len(wanted) > room:
            self._cut = True
        if self.has_work:
            self.service.enqueue(self)

    deliver_last = take_if_room

    def gap(self, after: int, upto: int) -> None:
        """What was trimmed cannot be sent any more."""
        log.warning("webpush.gap", extra={"binding": self.id, "after": after, "upto": upto})

    def failed(self, error: Exception) -> None:
        """The log could not be read: begin again from the position, a little later."""
        self._note(f"the log: {error}")
        self._pause(self._delay(None))

    # ── as one who waits for the service ──────────────────────────────────────────────────────

    @property
    def has_work(self) -> bool:
        return bool(self._waiting) and not self.paused

    def expired(self) -> None:
        """The pause is over."""
        self.paused = False
        if self.has_work:
            self.service.enqueue(self)
        elif self.feed.stopped and not self._closed:
            self.start()

    async def serve(self) -> None:
        """Send the next entry, or give it up."""
        if not self._waiting:
            return
        if not self._means.may(self.id):
            self._pause(_FENCED_SECONDS)  # until the duty is back, or this binding is ended here
            return
        entry = self._waiting[0]
        try:
            await self._send(entry)
        except Exception as error:
            # Whatever it was, the service's other bindings must go on, and this one after a while.
            log.exception("webpush.failed", extra={"binding": self.id})
            self._note(f"{type(error).__name__}: {error}")
            self._pause(self._delay(None))

    async def _send(self, entry: Entry) -> None:
        left_ms = deadline_ms(entry, self.kept.ttl) - self._context.clock.now_ms()
        if left_ms <= 0 and (self.kept.ttl or self.status.failures):
            await self._settle(entry, "expired", self.status.error and f"last: {self.status.error}")
            return
        wish = Wish(max(0, left_ms // 1000), self.kept.urgency, self.kept.topic)
        receipt = self._means.proofs.subscription(self._receiver.endpoint) if self.kept.receipts else None
        verdict = await self._means.courier.deliver(self.service.target, self._receiver, entry.body, wish, receipt)
        if not verdict.everybody:
            self.service.answered()
        if verdict.outcome is Outcome.ACCEPTED:
            await self._means.proofs.expect(
                self.id, entry, verdict, self._receiver.endpoint, deadline_ms(entry, self.kept.ttl)
            )
            await self._settle(entry, "sent", "accepted by the push service")
        elif verdict.outcome is Outcome.GONE:
            await self._settle(entry, "dead", verdict.reason)
            await self._means.unbind(self)
        elif verdict.outcome is Outcome.REFUSED or not self.kept.ttl:
            self._note(verdict.reason)
            await self._settle(entry, "dropped", verdict.reason)
        else:
            self._put_off(entry, verdict)

    def _put_off(self, entry: Entry, verdict: Verdict) -> None:
        self._note(verdict.reason)
        self._record(entry, "retried", verdict.reason)
        if verdict.everybody:
            self.service.hold(self._delay(verdict.retry_after, self.service.failures + 1))
        else:
            self._pause(self._delay(verdict.retry_after))

    async def _settle(self, entry: Entry, state: str, reason: str = "") -> None:
        """Nothing more will be done about this entry: write that down, then go on."""
        self._record(entry, state, reason)
        if state != "sent":
            await self._context.ledger.flush()
        await self._keep_position(entry.id)
        self._count(state)
        if self._waiting and self._waiting[0] is entry:
            self._waiting.popleft()
        if not self._waiting and not self._closed:
            self._read_on()

    def _read_on(self) -> None:
        if self._cut or self.feed.stopped:
            self.feed.stop()
            self.start()
        else:
            self.feed.resume()

    def _count(self, state: str) -> None:
        status = self.status
        status.failures = 0
        if state == "sent":
            status.sent, status.error = status.sent + 1, ""
        else:
            status.dropped += 1

    async def _keep_position(self, position: int) -> None:
        """Nobody else knows that it was sent: try until it is written."""
        while not self.removed and self._means.may(self.id):
            try:
                await self._context.registry.put(POSITIONS + self.id, encode_position(self.kept, position))
                self.position = position
                return
            except PenstockError as error:
                self._note(str(error))
                await asyncio.sleep(self._delay(None))

    # ── when something goes wrong ─────────────────────────────────────────────────────────────

    def _record(self, entry: Entry, state: str, reason: str) -> None:
        if not is_system(entry.stream):
            self._context.ledger.record(self.who, state, entry.stream, entry.id, entry.id, reason=reason[:200])

    def _pause(self, seconds: float) -> None:
        if not self._closed:
            self.paused = True
            self._context.wheel.arm(self, seconds)

    def _delay(self, asked: float | None, failures: int = 0) -> float:
        chance = random.random()  # noqa: S311 - spreads retries, guards nothing
        return self._means.retry.delay(failures or self.status.failures, chance, asked)

    def _note(self, error: str) -> None:
        status = self.status
        status.error, status.error_ms = error, self._context.clock.now_ms()
        status.failures += 1
        log.warning("webpush.send_failed", extra={"binding": self.id, "error": error})
