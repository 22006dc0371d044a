"""A browser's subscription bound to a stream: each data entry is sent as soon as it is there, in order, unless too old.

The position is written after each entry is settled, so a crash repeats at most the entry that was on its way.
An entry is settled as

    sent       the push service took it
    dropped    the push service will never take it, or sending it failed eight times for a reason of our own
    expired    it became too old while the push service, or our storage, took nothing
    dead       nobody is there: the binding ends with it
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.feed import Feed, take_if_room
from penstock.core.ledger import Recipient
from penstock.core.names import is_system
from penstock.doors.webpush_sender.push_client import PushClient
from penstock.doors.webpush_sender.receipts import AwaitedReceipts
from penstock.doors.webpush_sender.service_queue import ServiceQueue
from penstock.errors import Forbidden, NotRecorded, PenstockError
from penstock.http.timers import Timed
from penstock.values import Entry, Kind
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webpush_sender import (
    PushOutcome,
    PushReceiver,
    PushSubscription,
    SendOptions,
    Verdict,
    check_subscription,
    deadline_ms,
)

log = logging.getLogger("penstock.webpush")

POSITIONS = "webpush/positions/"
_FENCED_SECONDS = 1.0
SEND_TRIES = 8
"""After so many failures that no push service answers for, an entry is dropped, and the next one has its turn."""

_HELD = 16
"""Entries that a binding holds. A page of the log has a thousand: ten thousand bindings that wait for a service
that is down must not keep one each."""


class BindingRecord(msgspec.Struct):
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
    paused: bool = False  # by an operator: nothing is sent until it is resumed

    def caller(self) -> Caller:
        return Caller(self.owner, self.admin, (), self.subscribe)


def binding_id(stream: str, endpoint: str) -> str:
    """The same for the same pair: to bind again changes the binding that is there."""
    return hashlib.sha256(f"{stream}\n{endpoint}".encode()).hexdigest()[:16]


def encode_position(record: BindingRecord, position: int) -> bytes:
    """A position says which binding it is of: one that was made anew begins where it was told to."""
    return b"%d %d" % (record.created_ms, position)


def decode_position(record: BindingRecord, value: bytes) -> int:
    """Where this binding goes on."""
    created, _, position = value.partition(b" ")
    return int(position) if int(created) == record.created_ms else record.after


@dataclass(frozen=True, slots=True)
class SendingMeans:
    """What all bindings of a node send with."""

    context: Context
    client: PushClient
    receipts: AwaitedReceipts
    retry: RetryPolicy
    unbind: Callable[[Binding], Awaitable[None]]  # called when the push service says that nobody is there
    may: Callable[[str], bool]  # whether this node has the duty to send for the binding of this id


class BindingStatus:
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
        "_closed", "_context", "_cut", "_defects", "_means", "_receiver", "_settled", "_waiting", "feed", "id",
        "paused", "position", "queue", "record", "removed", "status", "who",
    )  # fmt: skip

    feed: Feed

    def __init__(self, id: str, record: BindingRecord, position: int, queue: ServiceQueue, means: SendingMeans) -> None:
        super().__init__()
        self.id, self.record, self.position = id, record, position
        self.queue, self._means, self._context = queue, means, means.context
        self._receiver: PushReceiver = check_subscription(record.subscription)
        self._waiting: deque[Entry] = deque()
        self._settled: Entry | None = None  # the first of them while it is written down that nothing more is done
        self.paused = False  # waits for its time
        self._cut = False  # there was more than it holds: it reads again from its position
        self._closed = False
        self._defects = 0  # how often this entry failed for no reason that a push service gave
        self.removed = False  # nothing may be written about it any more
        self.status = BindingStatus()
        self.who: Recipient = Recipient("webpush", id)

    def start(self) -> None:
        """Begin to read where it was."""
        owner = self.record.caller()
        try:
            check = owner.check_subscribe(self.record.stream)
        except Forbidden:
            check = owner.may_read  # the owner's rights have shrunk since: only what it may still read comes
        allow = None if check is None else lambda entry: check(entry.stream)
        self._cut = False
        self.feed = self._context.hub.start(self, (self.record.stream,), after=self.position, allow=allow)
        if self._cut:
            self.feed.stop()

    def stop(self) -> None:
        """End it. What is on its way is finished."""
        self._closed = True
        self.feed.stop()
        self._context.wheel.forget(self)
        self._waiting.clear()

    def change(self, record: BindingRecord) -> None:
        """The browser has other keys now, or the owner other options; or it was paused, or resumed."""
        self.record, self._receiver = record, check_subscription(record.subscription)
        if self.has_work:
            self.queue.enqueue(self)

    def retry_now(self) -> None:
        """Try at once what waits for its time after a failure."""
        self._context.wheel.forget(self)
        self.expired()
        self.queue.retry_now()

    def redrive(self, entries: Sequence[Entry]) -> None:
        """Send entries once more, after those that it holds. What is forgotten in a crash is still in trouble."""
        held = {entry.id for entry in self._waiting if entry is not self._settled}  # who asks may have seen it settled
        self._waiting.extend(entry for entry in entries if entry.id not in held)
        if self.has_work:
            self.queue.enqueue(self)

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
            self.queue.enqueue(self)

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
        return bool(self._waiting) and not self.paused and not self.record.paused

    def expired(self) -> None:
        """The pause is over."""
        self.paused = False
        if self.has_work:
            self.queue.enqueue(self)
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
            if self._defects < SEND_TRIES:
                await self._send(entry)
            else:
                await self._settle(entry, "dropped", f"given up after {SEND_TRIES} tries: {self.status.error}")
        except PenstockError as error:  # the storage: it is tried until that works, or the entry is too old
            self._note(str(error))
            self._pause(self._delay(None))
        except Exception as error:
            # Whatever it was, the service's other bindings must go on, and this one after a while.
            log.exception("webpush.failed", extra={"binding": self.id})
            self._defects += 1
            self._note(f"{type(error).__name__}: {error}")
            self._pause(self._delay(None))

    async def _send(self, entry: Entry) -> None:
        left_ms = deadline_ms(entry, self.record.ttl) - self._context.clock.now_ms()
        if left_ms <= 0 and (self.record.ttl or self.status.failures):
            await self._settle(entry, "expired", self.status.error and f"last: {self.status.error}")
            return
        options = SendOptions(max(0, left_ms // 1000), self.record.urgency, self.record.topic)
        receipt = self._means.receipts.subscription(self._receiver.endpoint) if self.record.receipts else None
        verdict = await self._means.client.deliver(self.queue.target, self._receiver, entry.body, options, receipt)
        if not verdict.everybody:
            self.queue.answered()
        if verdict.outcome is PushOutcome.ACCEPTED:
            await self._means.receipts.expect(
                self.id, entry, verdict, self._receiver.endpoint, deadline_ms(entry, self.record.ttl)
            )
            await self._settle(entry, "sent", "accepted by the push service")
        elif verdict.outcome is PushOutcome.GONE:
            await self._settle(entry, "dead", verdict.reason)
            await self._means.unbind(self)
        elif verdict.outcome is PushOutcome.REFUSED or not self.record.ttl:
            self._note(verdict.reason)
            await self._settle(entry, "dropped", verdict.reason)
        else:
            self._put_off(entry, verdict)

    def _put_off(self, entry: Entry, verdict: Verdict) -> None:
        self._note(verdict.reason)
        self._record(entry, "retried", verdict.reason)
        if verdict.everybody:
            self.queue.hold(self._delay(verdict.retry_after, self.queue.failures + 1))
        else:
            self._pause(self._delay(verdict.retry_after))

    async def _settle(self, entry: Entry, state: str, reason: str = "") -> None:
        """Nothing more will be done about this entry: write that down, then go on."""
        self._settled = entry
        try:
            await self._write_down(entry, state, reason)
        finally:
            self._settled = None
        self._count(state)
        if self._waiting and self._waiting[0] is entry:
            self._waiting.popleft()
        if not self._waiting and not self._closed:
            self._read_on()

    async def _write_down(self, entry: Entry, state: str, reason: str) -> None:
        self._record(entry, state, reason)
        if state != "sent":
            with suppress(NotRecorded):  # it never can be, and the ledger says so: another try would end alike
                await self._context.ledger.flush()
        if entry.id > self.position:  # else it was sent once more
            await self._keep_position(entry.id)

    def _read_on(self) -> None:
        if self._cut or self.feed.stopped:
            self.feed.stop()
            self.start()
        else:
            self.feed.resume()

    def _count(self, state: str) -> None:
        status = self.status
        status.failures = self._defects = 0
        if state == "sent":
            status.sent, status.error = status.sent + 1, ""
        else:
            status.dropped += 1

    async def _keep_position(self, position: int) -> None:
        """Nobody else knows that it was sent: try until it is written."""
        while not self.removed and self._means.may(self.id):
            try:
                await self._context.registry.put(POSITIONS + self.id, encode_position(self.record, position))
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
