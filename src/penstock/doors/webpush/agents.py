"""The user agents that are connected to this node, how their sessions follow each other, and what they share."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, Self

from penstock.api.context import Context
from penstock.core.background import Tasks
from penstock.core.change_watch import MailboxChange
from penstock.core.ledger import Recipient
from penstock.core.months import month_of
from penstock.doors.webpush.broadcasts import Broadcasts
from penstock.doors.webpush.cluster import Cluster
from penstock.doors.webpush.messages import Messages
from penstock.doors.webpush.receipts import Receipts
from penstock.doors.webpush.router_table import AlreadyConnected, KnownAgent, Lookup, RouterRecord, RouterTable
from penstock.errors import NotFound, PenstockError
from penstock.settings import WebPushSettings
from penstock.values import Room
from penstock.wire.retrying import RetryPolicy
from penstock.wire.webpush import Close, NodeAnswer, PushMessage
from penstock.wire.webpush_session import PushSession
from penstock.wire.webpush_tokens import EndpointTokens

log = logging.getLogger("penstock.webpush")

PUSH_WORKERS: Final = 256
"""User agents whose commands are carried out at once: a storm of them must not fill the engine's queues. Over
it: they wait their turn."""


class Connected(Protocol):
    """A session of a user agent."""

    @property
    def state(self) -> PushSession: ...
    def push(self, message: PushMessage) -> NodeAnswer: ...
    def notified(self, month: str) -> NodeAnswer: ...
    def finish(self, code: Close, reason: str = "") -> None: ...
    def dropped(self, reason: str) -> None: ...


class Agents:
    """All sessions of this node by user agent, and the tasks in which they work."""

    retry = RetryPolicy(first=1.0, longest=10.0)  # of what could not be stored: its user agent waits for that, too

    def __init__(
        self,
        context: Context,
        settings: WebPushSettings,
        tokens: EndpointTokens,
        time: Callable[[], float] | None = None,
        *,
        token: str = "",
    ) -> None:
        self.settings, self.tokens, self.wheel, self.clock = settings, tokens, context.wheel, context.clock
        self.time = time or asyncio.get_running_loop().time
        self._tasks = Tasks("webpush")
        self.start = self._tasks.start
        self.router = RouterTable(context, self._lost)
        self.alone = context.bus.alone  # nobody else can have a session of a user agent of ours
        self.lookup = Lookup(self.router, context.mailbox, alone=self.alone)
        self.receipts = Receipts(context, tokens, settings.receipts_kept)
        self.messages = Messages(context, self.receipts, Room(settings.stored_most, settings.stored_bytes), self.start)
        self.counts = self.messages.counts
        self.cluster = Cluster(self, context.bus, context.clock, token=token, timeout=settings.node_timeout)
        self.broadcasts = Broadcasts(context, settings)
        self.table: dict[str, Connected] = {}
        self.worker_slots = asyncio.Semaphore(PUSH_WORKERS)
        self._generation = 0
        self._saving: dict[str, asyncio.Task[object]] = {}
        self._finishing: dict[str, tuple[asyncio.Task[object], int]] = {}  # the worker, and its session's generation
        self._stopping = asyncio.Event()
        context.change_poller.on_mailbox(self._mailbox_changed)

    async def __aenter__(self) -> Self:
        await self.broadcasts.start()
        await self.router.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Store what is still unacknowledged; everything else ends by itself."""
        self._stopping.set()
        await self.broadcasts.stop()
        for session in list(self.table.values()):
            session.finish(Close.GOING_AWAY)
        await self._tasks.finish()
        await self.router.__aexit__(*error)
        self.cluster.close()

    def month(self) -> str:
        """The present month, by this node's clock."""
        return month_of(self.clock.now_ms())

    def next_generation(self) -> int:
        """A `connected_at` that no other session of this node has."""
        self._generation = max(self._generation + 1, self.clock.now_ms())
        return self._generation

    def new_uaid(self) -> str:
        """A name for a user agent that has none."""
        return uuid.uuid4().hex

    # ── sessions come and go ──────────────────────────────────────────────────────────────────

    def joined(self, session: Connected) -> None:
        """This is the session of its user agent now; an older one here ends, and what it had on its way is stored.

        Raises `AlreadyConnected` if a newer one was faster.
        """
        uaid = session.state.uaid
        other = self.table.get(uaid)
        if other is not None and other.state.connected_at > session.state.connected_at:
            raise AlreadyConnected(f"a newer session of {uaid} is here")
        self.table[uaid] = session
        self.lookup.forget(uaid)
        if other is not None and other is not session:
            other.finish(Close.FAILED, "superseded")

    def left(self, session: Connected, unsaved: Sequence[PushMessage]) -> None:
        """The session is over."""
        state = session.state
        if self.table.get(state.uaid) is session:
            del self.table[state.uaid]
            if state.saved:  # messages will come while it is away
                record = RouterRecord(state.month, self.router.node, self.router.address, state.connected_at)
                self.lookup.remember(state.uaid, KnownAgent(record, tuple(state.channels)))
        if state.uaid not in self.table:
            self.router.left(state.uaid)
        if unsaved:
            work = self._save(state.uaid, state.connected_at, unsaved, self._saving.get(state.uaid))
            self._saving[state.uaid] = self.start(work)

    async def saved(self, uaid: str, generation: int) -> None:
        """Return when nothing that sessions before *generation* leave behind is on its way to the storage.

        The caller is a worker and holds one of the `PUSH_WORKERS` slots. It gives the slot back while it waits, as the
        tasks it waits for may need one. No session waits for the worker of a newer one: two could wait for each other.
        """
        if not self._leaving(uaid, generation):
            return
        self.worker_slots.release()
        try:
            while tasks := self._leaving(uaid, generation):
                await asyncio.wait(tasks)
        finally:
            await self.worker_slots.acquire()

    def _leaving(self, uaid: str, generation: int) -> list[asyncio.Task[object]]:
        saving, (worker, its_generation) = self._saving.get(uaid), self._finishing.get(uaid, (None, 0))
        return [task for task in (saving, worker if its_generation < generation else None) if task is not None]

    def finishing(self, session: Connected, worker: asyncio.Task[object]) -> None:
        """A session that ends has something to do first: the user agent's next one waits for that, as for a save."""
        if session.state.uaid:
            self._finishing[session.state.uaid] = worker, session.state.connected_at

    def finished(self, uaid: str, worker: asyncio.Task[object] | None) -> None:
        """That worker has done all it will do."""
        if uaid in self._finishing and self._finishing[uaid][0] is worker:
            del self._finishing[uaid]

    def _lost(self, uaid: str, mine: RouterRecord, now: RouterRecord | None) -> None:
        """A router record is not what we wrote: say again where the user agent is, or give it up."""
        session = self.table.get(uaid)
        if session is not None and session.state.connected_at == mine.connected_at:
            self.start(self._restore(session))

    async def _restore(self, session: Connected) -> None:
        if await self.router.restore(session.state.uaid, session.state.connected_at):
            session.notified("")
        else:
            session.finish(Close.FAILED, "superseded")

    async def drop(self, uaid: str, months: Sequence[str], reason: str) -> None:
        """Forget a user agent with all its messages: first the record, so that senders hear 410 from then on."""
        await self.router.drop(uaid)
        if (session := self.table.get(uaid)) is not None:
            session.dropped(reason)
        for month in months:
            await self.messages.forget(uaid, month, reason)
        self.counts["dropped"] += 1
        log.info("user_agent.dropped", extra={"uaid": uaid, "reason": reason})

    # ── direct notifications that were not acknowledged ───────────────────────────────────────

    async def _save(
        self, uaid: str, connected_at: int, messages: Sequence[PushMessage], before: asyncio.Task[object] | None
    ) -> None:
        """Store them, then tell the node where the user agent is by now.

        Tried until it works, or we stop, or it never can: then the ledger says that they were dropped.
        """
        try:
            if before is not None:
                await asyncio.wait([before])
            failures = 0
            while True:
                try:
                    await self._store_unsaved(uaid, connected_at, messages)
                    return
                except PenstockError as error:
                    log.warning("save.waiting", extra={"uaid": uaid, "error": str(error), "messages": len(messages)})
                    if self._stopping.is_set():
                        self._drop_unsaved(uaid, messages, "lost", "storage")
                        return
                    failures += 1
                    chance = random.random()  # noqa: S311 - spreads retries, guards nothing
                    with suppress(TimeoutError):  # whoever stops the node has it tried once more, at once
                        async with asyncio.timeout(self.retry.delay(failures, chance)):
                            await self._stopping.wait()
        finally:
            if self._saving.get(uaid) is asyncio.current_task():
                del self._saving[uaid]

    async def _store_unsaved(self, uaid: str, connected_at: int, messages: Sequence[PushMessage]) -> None:
        found = await self.router.find(uaid)
        if found is None:
            self._drop_unsaved(uaid, messages, "dropped", "user_agent_gone")
            return
        month = found.month
        try:
            await self.messages.store(uaid, month, messages)
        except NotFound:
            moved = await self.router.find(uaid)
            if moved is not None and moved.month != month:
                raise  # there is another to store them in, with the next try
            # No month comes back, and the user agent that comes back is told to begin anew.
            log.warning("save.given_up", extra={"uaid": uaid, "month": month, "messages": len(messages)})
            self._drop_unsaved(uaid, messages, "dropped", "month_gone")
            return
        again = await self.router.find(uaid)
        if again is not None and again.node and again.connected_at != connected_at:
            await self.cluster.notify(again, uaid, month)

    def _drop_unsaved(self, uaid: str, messages: Sequence[PushMessage], state: str, reason: str) -> None:
        for message in messages:
            self.messages.record(Recipient("webpush", uaid), state, message.version, reason=reason)

    # ── what endpoints and other nodes say ────────────────────────────────────────────────────

    def push(self, message: PushMessage) -> NodeAnswer:
        """Give a notification to a session of ours."""
        session = self.table.get(message.uaid)
        if session is None or message.channel not in session.state.channels:
            return NodeAnswer.ABSENT
        return session.push(message)

    def notified(self, uaid: str, month: str) -> NodeAnswer:
        """Have a session of ours look into the storage."""
        session = self.table.get(uaid)
        return NodeAnswer.ABSENT if session is None else session.notified(month)

    def superseded(self, uaid: str, connected_at: int) -> None:
        """A session of ours is not its user agent's newest."""
        session = self.table.get(uaid)
        if session is not None and session.state.connected_at == connected_at:
            session.finish(Close.FAILED, "superseded")

    def _mailbox_changed(self, change: MailboxChange) -> None:
        """Somebody has stored something, and whoever told of it may not have been heard."""
        session = self.table.get(change.recipient)
        if session is not None and not session.state.has_read(change.month, change.next_number - 1):
            session.notified(change.month)
