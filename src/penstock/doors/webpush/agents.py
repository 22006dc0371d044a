"""The user agents that are connected to this node, and what their sessions share."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from penstock.api.context import Context
from penstock.core.ledger import Recipient, recipient
from penstock.core.lookout import MailboxChange, RecordChange
from penstock.core.months import month_of
from penstock.doors.webpush.broadcasts import Broadcasts
from penstock.doors.webpush.items import receipt_of, to_item
from penstock.doors.webpush.lookup import Known, Lookup
from penstock.doors.webpush.peers import Outcome, Peers
from penstock.doors.webpush.receipts import GONE, Receipts
from penstock.doors.webpush.records import PREFIX, AlreadyConnected, RouterRecord, RouterTable
from penstock.doors.webpush.session import Session
from penstock.doors.webpush.tokens import Tokens
from penstock.errors import NotFound, PenstockError
from penstock.http.exchange import LIVE, Request, Response
from penstock.limits import PUSH_WORKERS
from penstock.settings import WebPushSettings
from penstock.values import Item, Room
from penstock.wire.frames import offered_subprotocols
from penstock.wire.webpush import SUBPROTOCOL, Close, Message

log = logging.getLogger("penstock.webpush")


class Turns:
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


class Agents:
    """All sessions of this node by user agent, and the tasks in which they work."""

    kind: type[Session] = Session
    retry_seconds = 1.0  # until what could not be stored is tried again

    def __init__(
        self, context: Context, settings: WebPushSettings, tokens: Tokens, time: Callable[[], float] | None = None
    ) -> None:
        self.settings, self.tokens = settings, tokens
        self.mailbox, self.ledger, self.wheel = context.mailbox, context.ledger, context.wheel
        self.time = time or asyncio.get_running_loop().time
        self.router = RouterTable(context.registry, context.bus.node)
        self.alone = context.bus.alone  # nobody else can have a session of a user agent of ours
        self.lookup = Lookup(self.router, context.mailbox, alone=self.alone)
        self.receipts = Receipts(context, tokens)
        self.peers: Peers
        self.table: dict[str, Session] = {}
        self.broadcasts = Broadcasts(context, settings)
        self.room = Room(settings.stored_most, settings.stored_bytes)
        self.counts: Counter[str] = Counter()
        self.turnstile = asyncio.Semaphore(PUSH_WORKERS)
        self._clock = context.clock
        self._generation = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._saving: dict[str, asyncio.Task[object]] = {}
        self._finishing: dict[str, tuple[asyncio.Task[object], int]] = {}  # the worker, and its session's generation
        self._turns = Turns()
        self._flush_running: asyncio.Task[object] | None = None
        self._flush_waiting: asyncio.Task[object] | None = None
        self._stopping = False
        context.lookout.on_record(PREFIX, self._record_changed)
        context.lookout.on_mailbox(self._mailbox_changed)

    async def __aenter__(self) -> Self:
        await self.broadcasts.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what is still unacknowledged; everything else ends by itself."""
        self._stopping = True
        await self.broadcasts.stop()
        for session in list(self.table.values()):
            session.finish(Close.GOING_AWAY)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.peers.close()

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Have *work* done in a task that this object looks after."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.failed", exc_info=error)

    def open(self, request: Request, origin: str) -> Response:
        """Let a user agent in."""
        session = self.kind(self, origin)
        offers = [value for name, value in request.headers if name == b"sec-websocket-protocol"]
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in offered_subprotocols(offers) else None
        session.socket = request.accept_websocket(session, subprotocol, watch=self.ledger.enabled)
        session.arm()
        return LIVE

    # ── what sessions ask ─────────────────────────────────────────────────────────────────────

    def month(self) -> str:
        """The month it is, by this node's clock, which alone decides."""
        return month_of(self._clock.now_ms())

    def next_generation(self) -> int:
        """A `connected_at` that no other session of this node has."""
        self._generation = max(self._generation + 1, self._clock.now_ms())
        return self._generation

    def new_uaid(self) -> str:
        """A name for a user agent that has none."""
        return uuid.uuid4().hex

    def record(
        self, who: Recipient, state: str, version: str, month: str, number: int, reason: str = "",
        expires_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Tell the ledger what happened to a message."""
        self.ledger.record_item(who, state, version, month, number, reason=reason, expires_ms=expires_ms)

    async def flushed(self) -> None:
        """Return when all that was recorded before the call is durable.

        Acks of many user agents share a write: while one is under way, all who come wait for the next.
        """
        if self._flush_waiting is None:
            self._flush_waiting = self.start(self._flush(self._flush_running))
        await asyncio.shield(self._flush_waiting)

    async def _flush(self, before: asyncio.Task[object] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._flush_running, self._flush_waiting = self._flush_waiting, None
        await self.ledger.flush()

    def joined(self, session: Session) -> None:
        """This is the session of its user agent now; an older one here ends, and what it had on its way is stored.

        Raises `AlreadyConnected` if a newer one was faster.
        """
        other = self.table.get(session.uaid)
        if other is not None and other.connected_at > session.connected_at:
            raise AlreadyConnected(f"a newer session of {session.uaid} is here")
        self.table[session.uaid] = session
        self.lookup.forget(session.uaid)
        if other is not None and other is not session:
            other.finish(Close.FAILED, "superseded")

    def left(self, session: Session, unsaved: list[Message]) -> None:
        """The session is over."""
        if self.table.get(session.uaid) is session:
            del self.table[session.uaid]
            if session.saved:  # messages will come while it is away
                record = RouterRecord(session.month, self.router.node, self.router.address, session.connected_at)
                self.lookup.remember(session.uaid, Known(record, tuple(session.channels)))
        if session.uaid not in self.table:
            self.router.written.pop(session.uaid, None)
        if unsaved:
            before = self._saving.get(session.uaid)
            work = self._save(session.uaid, session.connected_at, unsaved, before)
            self._saving[session.uaid] = self.start(work)

    async def saved(self, uaid: str, generation: int) -> None:
        """Return when nothing that sessions before *generation* leave behind is on its way to the storage.

        The caller has the turn of a worker. Others have it meanwhile: they may be those who are waited for. Nobody
        waits for a session that is newer than his own, or two that end at once would wait for each other.
        """
        if not self._leaving(uaid, generation):
            return
        self.turnstile.release()
        try:
            while tasks := self._leaving(uaid, generation):
                await asyncio.wait(tasks)
        finally:
            await self.turnstile.acquire()

    def _leaving(self, uaid: str, generation: int) -> list[asyncio.Task[object]]:
        saving, (worker, its_generation) = self._saving.get(uaid), self._finishing.get(uaid, (None, 0))
        return [task for task in (saving, worker if its_generation < generation else None) if task is not None]

    def finishing(self, session: Session, worker: asyncio.Task[object]) -> None:
        """A session that ends has something to do first: the user agent's next one waits for that, as for a save."""
        if session.uaid:
            self._finishing[session.uaid] = worker, session.connected_at

    def finished(self, uaid: str, worker: asyncio.Task[object] | None) -> None:
        """That worker has done all it will do."""
        if uaid in self._finishing and self._finishing[uaid][0] is worker:
            del self._finishing[uaid]

    def renew(self, session: Session) -> None:
        """See that the record still leads here. Alone there is nobody who could have changed it."""
        if not self.alone and session.saved:
            self.start(self._renew(session))

    async def _renew(self, session: Session) -> None:
        if await self.router.restore(session.uaid, session.connected_at):
            session.notified("")
        else:
            session.finish(Close.FAILED, "superseded")

    # ── direct notifications that were not acknowledged ───────────────────────────────────────

    async def _save(
        self, uaid: str, connected_at: int, messages: list[Message], before: asyncio.Task[object] | None
    ) -> None:
        """Store them, then tell the node where the user agent is by now.

        Tried until it works, or we stop, or it never can: then the ledger says that they were dropped.
        """
        try:
            if before is not None:
                await asyncio.wait([before])
            while True:
                try:
                    await self._store_unsaved(uaid, connected_at, messages)
                    return
                except PenstockError as error:
                    log.warning("save.waiting", extra={"uaid": uaid, "error": str(error), "messages": len(messages)})
                    if self._stopping:
                        self._drop_unsaved(uaid, messages, "lost", "storage")
                        return
                    await asyncio.sleep(self.retry_seconds)
        finally:
            if self._saving.get(uaid) is asyncio.current_task():
                del self._saving[uaid]

    async def _store_unsaved(self, uaid: str, connected_at: int, messages: list[Message]) -> None:
        found = await self.router.find(uaid)
        if found is None:
            self._drop_unsaved(uaid, messages, "dropped", "user_agent_gone")
            return
        month = found.record.month
        try:
            await self.store(uaid, month, messages)
        except NotFound:
            moved = await self.router.find(uaid)
            if moved is not None and moved.record.month != month:
                raise  # there is another to store them in, with the next try
            # No month comes back, and the user agent that comes back is told to begin anew (`Session._come_back`).
            log.warning("save.given_up", extra={"uaid": uaid, "month": month, "messages": len(messages)})
            self._drop_unsaved(uaid, messages, "dropped", "month_gone")
            return
        again = await self.router.find(uaid)
        if again is not None and again.record.node and again.record.connected_at != connected_at:
            await self.peers.notify(again.record, uaid, month)

    def _drop_unsaved(self, uaid: str, messages: list[Message], state: str, reason: str) -> None:
        for message in messages:
            self.record(recipient("webpush", uaid), state, message.version, "", 0, reason)

    async def store(self, uaid: str, month: str, messages: Sequence[Message], *, room: Room | None = None) -> None:
        """Put messages into the user agent's mailbox of that month.

        `NotFound` if the month is gone, `MailboxFull` if there has to be *room* and is none.
        """
        if any(message.topic for message in messages):
            # One after the other, so that each knows which one it has replaced.
            async with self._turns.of(uaid):
                await self._store(uaid, month, messages, room)
        else:
            await self._store(uaid, month, messages, room)

    async def _store(self, uaid: str, month: str, messages: Sequence[Message], room: Room | None) -> None:
        who = recipient("webpush", uaid)
        replaced: dict[int, Item] = {}
        for message in messages:
            if message.topic:
                item = await self.mailbox.edition(uaid, month, message.channel, message.topic)
                replaced |= {} if item is None else {item.number: item}
        items = await self.mailbox.put(uaid, month, [to_item(message) for message in messages], room=room)
        self.stored(who, month, items)
        for item in replaced.values():
            is_over = item.expires_ms is not None and item.expires_ms <= self._clock.now_ms()
            await self.gone(uaid, month, item, "expired" if is_over else "dropped", "" if is_over else "replaced")

    def stored(self, who: Recipient, month: str, items: Sequence[Item]) -> None:
        """Note that these are in a user agent's mailbox."""
        for item in items:
            self.record(who, "stored", item.message_id, month, item.number, expires_ms=item.expires_ms)
        self.counts["stored"] += len(items)

    # ── as the local end of `Peers` ───────────────────────────────────────────────────────────

    def push(self, message: Message) -> Outcome:
        """Give a notification to a session of ours."""
        session = self.table.get(message.uaid)
        if session is None or message.channel not in session.channels:
            return Outcome.ABSENT
        return session.push(message)

    def notified(self, uaid: str, month: str) -> Outcome:
        """Have a session of ours look into the storage."""
        session = self.table.get(uaid)
        return Outcome.ABSENT if session is None else session.notified(month)

    def _record_changed(self, change: RecordChange) -> None:
        """A router record is not what we wrote: say again where the user agent is, or give it up."""
        uaid = change.key.removeprefix(PREFIX)
        session = self.table.get(uaid)
        if session is not None and self.router.written.get(uaid, 0) < change.version:
            self.renew(session)

    def _mailbox_changed(self, change: MailboxChange) -> None:
        """Somebody has stored something, and whoever told of it may not have been heard."""
        session = self.table.get(change.recipient)
        if session is not None and not session.has_read(change.month, change.next_number - 1):
            session.notified(change.month)

    def superseded(self, uaid: str, connected_at: int) -> None:
        """A session of ours is not its user agent's newest."""
        session = self.table.get(uaid)
        if session is not None and session.connected_at == connected_at:
            session.finish(Close.FAILED, "superseded")

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    async def drop(self, uaid: str, months: Sequence[str], reason: str) -> None:
        """Forget a user agent with all its messages: first the record, so that senders hear 410 from then on."""
        await self.router.drop(uaid)
        if (session := self.table.get(uaid)) is not None:
            session.saved = False
            session.close(Close.NORMAL, reason)
        for month in months:
            try:
                await self.note_gone(uaid, month, reason)
                await self.mailbox.forget(uaid, month)
            except NotFound:
                continue
        self.counts["dropped"] += 1
        log.info("user_agent.dropped", extra={"uaid": uaid, "reason": reason})

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
        self.record(recipient(door, uaid), state, item.message_id, month, item.number, reason)
        if door == "webpush" and (receipt := receipt_of(item)):
            await self.receipts.report(receipt, item.message_id, GONE)
