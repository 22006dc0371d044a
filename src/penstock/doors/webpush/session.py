"""One user agent on its WebSocket: performs what `wire/webpush_session.py` decides.

There is no task while nothing happens. A command that needs the storage starts the session's worker, which does what
is to be done and ends. Deadlines stand in the one wheel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from penstock.core.ledger import Recipient
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.receipts import DELIVERED
from penstock.doors.webpush.router_table import AlreadyConnected
from penstock.errors import NotFound, PenstockError
from penstock.http.timers import Timed
from penstock.http.websocket import WebSocket
from penstock.limits import PUSH_PAGE
from penstock.wire.webpush import Close, NodeAnswer, PushMessage
from penstock.wire.webpush_actions import (
    Action,
    AgentIdentity,
    Arm,
    CloseSocket,
    Discard,
    DropAgent,
    Greet,
    Job,
    Leave,
    MoveMonth,
    PushSessionRules,
    ReadPage,
    RecordState,
    RemoveChannel,
    SaveChannel,
    SendFrame,
    Settle,
    Signal,
    SubscribeBroadcasts,
)
from penstock.wire.webpush_session import PushSession
from penstock.wire.webpush_tokens import EndpointSubscription

log = logging.getLogger("penstock.webpush")


class AgentSession(Timed):
    """A connection of a user agent, as the WebSocket's owner."""

    __slots__ = ("_origin", "_worker", "home", "socket", "state", "who")

    machine: type[PushSession] = PushSession
    socket: WebSocket
    who: Recipient

    def __init__(self, home: Agents, rules: PushSessionRules, origin: str) -> None:
        super().__init__()
        self.home, self._origin = home, origin
        self.state = self.machine(rules, home.time())
        self._worker: asyncio.Task[object] | None = None

    # ── events ────────────────────────────────────────────────────────────────────────────────

    def opened(self, socket: WebSocket) -> None:
        """The WebSocket is there."""
        self.socket = socket
        self._perform(self.state.opened(self.home.time()))

    def received(self, message: str | bytes) -> None:
        """A message from the user agent."""
        self._perform(self.state.received(message, self.home.time()))

    def ponged(self) -> None:
        """It is alive."""
        self.state.ponged(self.home.time())

    def flushed(self) -> None:
        """The kernel has taken everything."""
        self._perform(self.state.flushed())

    def drained(self) -> None:
        """The user agent takes bytes again."""
        self._perform(self.state.drained())
        self.tell_broadcasts()

    def expired(self) -> None:
        """The wheel calls: a deadline may have come."""
        self._perform(self.state.expired(self.home.time()))

    def lost(self, code: int) -> None:
        """It is gone; what it said before that counts."""
        self.finish(Close.NORMAL)

    def draining(self) -> None:
        """The server stops: the user agent comes back to whoever serves it next."""
        self.finish(Close.GOING_AWAY)

    def finish(self, code: Close, reason: str = "") -> None:
        """Take no more, carry out what was received, then close. The user agent's next session waits for it."""
        self._perform(self.state.finish(code, reason, self.home.time()))

    def dropped(self, reason: str) -> None:
        """The user agent is forgotten."""
        self._perform(self.state.dropped(reason))

    def push(self, message: PushMessage) -> NodeAnswer:
        """Send a notification past the storage, if the user agent is able to take one."""
        answer, actions = self.state.push(message, full=self.socket.full)
        self._perform(actions)
        return answer

    def notified(self, month: str) -> NodeAnswer:
        """Somebody stored a message."""
        answer, actions = self.state.notified(month)
        self._perform(actions)
        return answer

    def tell_broadcasts(self) -> None:
        """Say which versions have changed; a user agent that does not read hears it when it does."""
        if not self.socket.full:
            self._perform(self.state.broadcast(self.home.broadcasts.versions))

    # ── actions ───────────────────────────────────────────────────────────────────────────────

    def _perform(self, actions: Iterable[Action]) -> None:
        home = self.home
        for action in actions:
            if isinstance(action, SendFrame):  # these two come for each message: a match costs 2 µs more
                self.socket.put(action.frame)
            elif isinstance(action, RecordState):
                state = action.state
                home.messages.record(self.who, state, action.version, action.month, action.number, action.reason)
                if state != "dropped":  # that counts user agents
                    home.counts[state] += 1
            else:
                self._perform_rare(action)

    def _perform_rare(self, action: Signal | Arm | Leave | CloseSocket) -> None:
        match action:
            case Arm(seconds):
                self.home.wheel.arm(self, seconds)
            case Leave(unsaved):
                self.home.wheel.forget(self)
                self.home.broadcasts.leave(self)
                self.home.left(self, unsaved)
            case CloseSocket(code, reason):
                self.socket.close(code, reason)
            case Signal.START_WORKER:
                self._worker = self.home.start(self._work())
            case Signal.AWAIT_WORKER:
                self.home.wheel.forget(self)
                if self._worker is not None:
                    self.home.finishing(self, self._worker)
            case Signal.PING:
                self.socket.ping()
            case Signal.JOIN_BROADCASTS:
                self.home.broadcasts.join(self)
            case Signal.COUNT_NACK:
                self.home.counts["nacked"] += 1

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        """Do what is to be done, one job after the other; end when nothing is left."""
        state = self.state
        try:
            while self._has_work():
                async with (
                    self.home.worker_slots
                ):  # for each job anew: a session with many jobs lets others have a turn
                    actions, job = state.work(self.home.time(), full=self.socket.full)
                    self._perform(actions)
                    if job is not None:
                        self._perform(await self._do(job))
            self._perform(state.rest())
        except AlreadyConnected:
            self._perform(state.failed("already_connected"))
        except PenstockError as error:
            log.warning("session.failed", extra={"uaid": state.uaid, "error": str(error)})
            self._perform(state.failed("try again later"))
        except Exception:  # a defect ends this session and no other; the user agent comes back
            log.exception("session.broken", extra={"uaid": state.uaid})
            self._perform(state.failed("InternalError"))
        finally:
            self.home.finished(state.uaid, self._worker)
            self._worker = None

    def _has_work(self) -> bool:
        return self.state.has_work(self.home.time(), full=self.socket.full)

    async def _do(self, job: Job) -> Iterable[Action]:
        """Do one job, and tell the session what came of it."""
        home, state = self.home, self.state
        match job:
            case Settle():
                await self._settle(job)
            case ReadPage():
                return await self._read(job)
            case Discard(numbers):
                for month, some in numbers.items():
                    await home.messages.discard(state.uaid, month, some)
            case Greet(uaid, asked):
                await self._identify(uaid)
                actions = state.greeted(asked, home.broadcasts.versions, home.time(), alone=home.alone)
                home.counts["hellos"] += 1
                return actions
            case SaveChannel():
                return await self._save_channel(job)
            case RemoveChannel(channel):
                await home.messages.note_gone(state.uaid, state.month, "unregistered", channel)
                await home.messages.mailbox.remove_channel(state.uaid, state.month, channel)
                home.lookup.forget(state.uaid)
                return state.unregistered(channel)
            case SubscribeBroadcasts(asked):
                return state.subscribed(asked, home.broadcasts.versions)
            case MoveMonth(old):
                return await self._move(old)
            case DropAgent(months):
                await home.drop(state.uaid, months, "msg_limit")
                return state.dropped("too many stored messages")
        return ()

    async def _identify(self, uaid: str) -> None:
        """Find out who this is, and be the one session it has."""
        if not uaid or not await self._come_back(uaid):
            home = self.home
            self._be(AgentIdentity(home.new_uaid(), home.next_generation(), home.month()))

    async def _come_back(self, uaid: str) -> bool:
        """Be the user agent of that name, if it is known."""
        home, generation = self.home, self.home.next_generation()
        await home.saved(uaid, generation)  # a job that an older session left over may still drop the user agent
        record = await home.router.connect(uaid, generation)
        if record is None:
            return False
        try:
            head = await home.messages.mailbox.head(uaid, record.month)
        except NotFound:  # it was away for so long that its month is gone
            await home.drop(uaid, (), "month_gone")
            return False
        room = home.messages.room
        self._be(
            AgentIdentity(
                uaid, record.connected_at, record.month, record.previous, frozenset(head.channels), saved=True,
                moves=record.month != home.month(), waiting_upto=head.next_number - 1,
                crowded=head.pending >= room.items or head.pending_bytes >= room.bytes,
            )
        )  # fmt: skip
        home.joined(self)
        await home.saved(uaid, record.connected_at)  # what an older one here had on its way comes first
        return True

    def _be(self, identity: AgentIdentity) -> None:
        self.state.identified(identity)
        self.who = Recipient("webpush", identity.uaid)

    async def _save_channel(self, job: SaveChannel) -> Iterable[Action]:
        """Write the channel down; with the first one the user agent itself becomes known."""
        home, state = self.home, self.state
        if not state.saved:
            month = home.month()
            await home.router.add(state.uaid, month, state.connected_at)
            state.saved_in(month)
            home.joined(self)
        await home.messages.mailbox.add_channel(state.uaid, state.month, job.channel)
        home.lookup.forget(state.uaid)
        path = home.tokens.endpoint(EndpointSubscription(state.uaid, job.channel, job.key_hash))
        return state.registered(job.channel, self._origin + path)

    async def _settle(self, job: Settle) -> None:
        home, stored = self.home, [one for one in job.acked if one.month]
        await home.messages.flushed()  # before anything follows from it
        for month in {one.month for one in stored}:
            numbers = [one.number for one in stored if one.month == month]
            await home.messages.mailbox.confirm(self.state.uaid, month, numbers)
        for one in job.acked:
            if one.message.receipt:
                await home.receipts.report(one.message.receipt, one.message.version, DELIVERED)
        self.state.settled(job.acked)

    async def _read(self, job: ReadPage) -> Iterable[Action]:
        state = self.state
        try:
            page = await self.home.messages.mailbox.take(state.uaid, job.month, after=job.after, limit=PUSH_PAGE)
        except NotFound:
            if job.month == state.month:
                raise
            state.month_gone(job.month)
            return ()
        return state.page(job.month, page)

    async def _move(self, old: str) -> Iterable[Action]:
        """Steps 3 and 4 of the month's switch. Whoever dies in between finds everything as it was."""
        home, state, new = self.home, self.state, self.home.month()
        mailbox = home.messages.mailbox
        await mailbox.set_channels(state.uaid, new, await mailbox.channels(state.uaid, old))
        if await home.router.move(state.uaid, state.connected_at, new):
            return state.moved(new, home.time())
        return state.close(Close.FAILED, "superseded")
