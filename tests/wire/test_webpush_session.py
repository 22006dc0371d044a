"""A session against a model: whatever comes in whatever order, nothing is lost, and nothing acknowledged comes again.

The test is the world around one session: its storage, its node and its user agent. It does the session's jobs when it
likes, so everything else may happen while one is under way. What a session leaves behind is stored, and the next one
begins with that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from penstock.limits import PUSH_COMMANDS, PUSH_PAGE
from penstock.values import Item
from penstock.wire.webpush import Close, NodeAnswer, PushMessage, to_item
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
    Unacked,
)
from penstock.wire.webpush_session import PUSH_FINISH_SECONDS, PushSession
from penstock.wire.webpush_session_delivery import ENDING, LEFT, OPEN, READ, SILENT, UNREAD
from penstock.wire.websocket_frames import text_frame

UAID = "a" * 32
CHANNELS = [f"d9b74644-4f97-46aa-b8fa-{number:012x}" for number in range(2)]
OLD, NEW = "2026_10", "2026_11"
WINDOW = 2
RULES = PushSessionRules(WINDOW, 0, 30.0, 300.0, 4.0, 60.0)


def said(**fields: object) -> str:
    return json.dumps(fields)


def heard(frame: bytes) -> dict[str, object]:
    """The text of a frame that the session sent."""
    payload: dict[str, object] = json.loads(frame[2:] if frame[1] < 126 else frame[4:])
    assert text_frame(json.dumps(payload, separators=(",", ":")).encode())[0] == frame[0]
    return payload


class Storage:
    """The mailboxes of one user agent by month, its channels and its router record."""

    def __init__(self) -> None:
        self.months: dict[str, dict[int, Item]] = {OLD: {}, NEW: {}}
        self.channels: dict[str, set[str]] = {OLD: set(), NEW: set()}
        self.month, self.previous = OLD, ""
        self.numbers = 0

    def put(self, month: str, message: PushMessage) -> None:
        self.numbers += 1
        new = to_item(message)
        self.months[month][self.numbers] = Item(
            self.numbers, 0, new.message_id, None, new.body, new.channel, new.collapse, new.attributes, new.expires_ms
        )

    def take(self, month: str, after: int) -> list[Item]:
        return [item for number, item in sorted(self.months[month].items()) if number > after][:PUSH_PAGE]

    def versions(self) -> set[str]:
        return {item.message_id for items in self.months.values() for item in items.values()}


class World(RuleBasedStateMachine):
    """One user agent that comes and goes, and senders."""

    machine: type[PushSession] = PushSession

    def __init__(self) -> None:
        super().__init__()
        self.storage = Storage()
        self.accepted: set[str] = set()  # versions that somebody may count on
        self.acked: set[str] = set()
        self.withdrawn: set[str] = set()  # their channel was unregistered
        self.shown: list[str] = []  # versions on the user agent's screen that it has not acknowledged, this session
        self.sent: set[str] = set()  # in this session
        self.count = 0
        self.full = False
        self.hint = False  # a session is to be told that something was stored
        self.now = 1000.0
        self.storage.channels[OLD].update(CHANNELS)
        self.connect()
        self.do_job()  # it has had its hello

    # ── the node ──────────────────────────────────────────────────────────────────────────────

    def connect(self) -> None:
        self.session = self.machine(RULES, self.now)
        self.worker, self.job, self.open = False, None, True
        self.shown, self.sent, self.full = [], set(), False
        self.perform(self.session.opened(self.now))
        self.perform(self.session.received(said(messageType="hello", uaid=UAID), self.now))

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendFrame(frame):
                    self.hear(heard(frame))
                case Signal.START_WORKER:
                    assert not self.worker
                    self.worker = True
                case Leave(unsaved):
                    for message in unsaved:
                        self.storage.put(self.storage.month, message)
                case CloseSocket():
                    self.open = False
                case RecordState("acked", version):
                    assert version in self.accepted
                case RecordState("dropped", version, _, _, reason):
                    assert reason == "unregistered"
                    self.withdrawn.add(version)
                case RecordState() | Arm() | Signal():
                    pass

    def hear(self, frame: dict[str, object]) -> None:
        if frame["messageType"] != "notification" or not self.open:
            return
        version = str(frame["version"])
        assert version not in self.sent, "sent twice in one session"
        assert version not in self.acked, "acknowledged, and sent again"
        self.sent.add(version)
        self.shown.append(version)

    def message(self, channel: str) -> PushMessage:
        self.count += 1
        return PushMessage(UAID, channel, f"v{self.count}", 60, 10**15, b"x", encoding="aes128gcm")

    # ── the worker: a job is begun and ended, and anything may come between ───────────────────

    @precondition(lambda self: self.worker and self.job is None)
    @rule()
    def take_job(self) -> None:
        actions, self.job = self.session.work(self.now, full=self.full)
        self.perform(actions)
        if self.job is None and not actions and not self.session.has_work(self.now, full=self.full):
            self.worker = False
            self.perform(self.session.rest())

    @precondition(lambda self: self.job is not None)
    @rule()
    def end_job(self) -> None:
        job, self.job = self.job, None
        assert job is not None
        self.perform(self.done(job))

    @precondition(lambda self: self.worker)
    @rule()
    def do_job(self) -> None:
        if self.job is None:
            self.take_job()
        if self.job is not None:
            self.end_job()

    def done(self, job: Job) -> Sequence[Action]:
        storage, session = self.storage, self.session
        match job:
            case Greet(uaid, asked):
                assert uaid == UAID
                channels = frozenset(storage.channels[storage.month])
                identity = AgentIdentity(
                    UAID, 1, storage.month, storage.previous, channels, saved=True, moves=storage.month != NEW
                )
                session.identified(identity)
                return session.greeted(asked, {}, self.now, alone=True)
            case SaveChannel(channel):
                storage.channels[session.month].add(channel)
                return session.registered(channel, "https://push.test/wpush/v1/x")
            case RemoveChannel(channel):
                self.withdraw(session.month, channel)
                storage.channels[session.month].discard(channel)
                return session.unregistered(channel)
            case SubscribeBroadcasts(asked):
                return session.subscribed(asked, {})
            case Settle(acked):
                for one in acked:
                    if one.month:
                        storage.months[one.month].pop(one.number, None)
                session.settled(acked)
            case ReadPage(month, after):
                return session.page(month, storage.take(month, after))
            case Discard(numbers):
                for month, number in ((month, number) for month, some in numbers.items() for number in some):
                    storage.months[month].pop(number)
            case MoveMonth(month):
                storage.channels[NEW] = set(storage.channels[month])
                storage.month, storage.previous = NEW, month
                return session.moved(NEW, self.now)
            case DropAgent():
                raise AssertionError("there is no limit")
        return ()

    def withdraw(self, month: str, channel: str) -> None:
        gone = [number for number, item in self.storage.months[month].items() if item.channel == channel]
        for number in gone:
            self.withdrawn.add(self.storage.months[month].pop(number).message_id)

    # ── the user agent ────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: not self.open and not self.worker)
    @rule()
    def come_back(self) -> None:
        self.connect()

    @precondition(lambda self: self.open)
    @rule(channel=st.sampled_from(CHANNELS), kind=st.sampled_from(["register", "register", "unregister"]))
    def say_channel(self, channel: str, kind: str) -> None:
        self.perform(self.session.received(said(messageType=kind, channelID=channel), self.now))

    @precondition(lambda self: self.open and self.shown)
    @rule(some=st.data())
    def acknowledge(self, some: st.DataObject) -> None:
        chosen = some.draw(st.lists(st.sampled_from(self.shown), min_size=1, unique=True))
        self.shown = [version for version in self.shown if version not in chosen]
        self.acked.update(chosen)
        updates = [{"version": version, "channelID": CHANNELS[0]} for version in chosen]
        self.perform(self.session.received(said(messageType="ack", updates=updates), self.now))

    @precondition(lambda self: self.open)
    @rule(how=st.sampled_from(["lost", "mistake", "pong"]))
    def go(self, how: str) -> None:
        self.open = how == "pong"
        if how == "mistake":
            self.perform(self.session.received("[", self.now))
        elif how == "lost":
            self.perform(self.session.finish(Close.NORMAL, "", self.now))
        else:
            self.session.ponged(self.now)
            self.perform(self.session.expired(self.now))

    @rule()
    def read_slowly(self) -> None:
        self.full = not self.full
        if not self.full:
            self.perform(self.session.drained())
            self.perform(self.session.flushed())

    # ── senders ───────────────────────────────────────────────────────────────────────────────

    @rule(channel=st.sampled_from(CHANNELS), durable=st.booleans())
    def send(self, channel: str, durable: bool) -> None:
        """As an endpoint does: to the session if there is one and it takes it, else into the storage, and a hint."""
        if channel not in self.storage.channels[self.storage.month]:
            return
        message, before = self.message(channel), len(self.session.unacked)
        self.accepted.add(message.version)
        if not durable:
            answer, actions = self.session.push(message, full=self.full)
            assert (answer is NodeAnswer.ABSENT) == (self.session.phase is not OPEN)
            if answer is NodeAnswer.TAKEN:
                assert before < WINDOW
                if channel not in self.session.channels:  # an unregister is under way: its node would have said 404
                    self.withdrawn.add(message.version)
                self.perform(actions)
                return
        self.storage.put(self.storage.month, message)
        self.tell(self.storage.month)

    @rule(channel=st.sampled_from(CHANNELS))
    def send_late(self, channel: str) -> None:
        """An endpoint that read the record before the month moved on."""
        if self.storage.month == NEW and channel in self.storage.channels[NEW]:
            message = self.message(channel)
            self.accepted.add(message.version)
            self.storage.put(OLD, message)
            self.tell(OLD)

    def tell(self, month: str) -> None:
        if self.session.phase is not LEFT:
            _, actions = self.session.notified(month)
            self.perform(actions)

    # ── what holds ────────────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_is_lost(self) -> None:
        """Whatever was accepted is acknowledged, withdrawn, in the storage, or on its way."""
        foreign = {item.message_id for item in self.foreign()}
        here = self.storage.versions() | set(self.session.unacked)
        assert self.accepted - self.acked - self.withdrawn - foreign <= here

    def foreign(self) -> list[Item]:
        channels = self.storage.channels[self.storage.month]
        return [
            item for items in self.storage.months.values() for item in items.values() if item.channel not in channels
        ]

    @invariant()
    def somebody_looks_after_it(self) -> None:
        """The worker runs whenever there is something to do: no wake-up is lost."""
        assert self.session.at_work == self.worker
        if self.session.phase is OPEN and not self.full:
            assert self.worker or not self.session.has_work(self.now, full=False)

    @invariant()
    def what_is_stored_is_sent(self) -> None:
        """A session that has read the storage, and has nothing to do, has sent all that is in it."""
        if self.session.phase is OPEN and self.session.storage is READ and not self.worker:
            foreign = {item.message_id for item in self.foreign()}
            assert self.storage.versions() - foreign <= self.sent | self.acked

    @invariant()
    def the_window_holds(self) -> None:
        assert len(self.session.unacked) <= WINDOW + PUSH_PAGE  # direct ones may come while a page is read

    def teardown(self) -> None:
        """In the end the user agent comes back, takes everything, and has had all of it."""
        if self.open:
            self.open = False
            self.perform(self.session.finish(Close.NORMAL, "", self.now))
        self.work_off()
        for _ in range(2):  # the second one finds nothing that the first had not
            self.connect()
            self.work_off()
            while self.shown:
                version = self.shown[0]
                self.shown.remove(version)
                self.acked.add(version)
                updates = [{"version": version, "channelID": CHANNELS[0]}]
                self.perform(self.session.received(said(messageType="ack", updates=updates), self.now))
                self.work_off()
            assert self.session.storage is READ
            self.perform(self.session.finish(Close.NORMAL, "", self.now))
            self.work_off()
        assert self.accepted - self.acked - self.withdrawn == set()
        assert self.storage.versions() <= self.acked | self.withdrawn

    def work_off(self) -> None:
        self.full = False
        for _ in range(1000):
            if not self.worker:
                return
            self.do_job()
        raise AssertionError("the worker never rests")


WORLD = settings(max_examples=100, stateful_step_count=40, deadline=None)
FIRST = settings(WORLD, max_examples=5000, phases=[Phase.generate], database=None, derandomize=True)
"""The same inputs in each run: whether a worse machine is found must not be left to chance."""


def test_nothing_is_lost_and_nothing_acknowledged_comes_again() -> None:
    run_state_machine_as_test(World, settings=WORLD)  # type: ignore[no-untyped-call]


class DeafMachine(PushSession):
    """A hint that comes while the storage is read is forgotten."""

    def _outdate(self) -> None:
        self.storage = UNREAD if self.storage in (READ, UNREAD) else self.storage


class HastyMachine(PushSession):
    """What was received before the end is forgotten."""

    def finish(self, code: Close, reason: str, now: float) -> list[Action]:
        return self.close(code, reason)


class ForgetfulMachine(PushSession):
    """Direct notifications are not stored when the session ends."""

    def _take_unsaved(self) -> tuple[list[Action], tuple[PushMessage, ...]]:
        return [], ()


class NeverLooksBack(PushSession):
    """The month before is never read again."""

    reads_previous = False


class Impatient(PushSession):
    """The storage is read on before what it gave was acknowledged, and from where it was."""

    @property
    def _may_read(self) -> bool:
        return self.storage is UNREAD and self.saved

    def _page_of(self, month: str) -> ReadPage:
        return ReadPage(month, 0)


class Boundless(PushSession):
    """The window has no end."""

    def push(self, message: PushMessage, *, full: bool) -> tuple[NodeAnswer, Sequence[Action]]:
        return (NodeAnswer.TAKEN, (self._send(Unacked(message)),)) if self.phase is OPEN else (NodeAnswer.ABSENT, ())


@pytest.mark.parametrize("worse", [DeafMachine, HastyMachine, ForgetfulMachine, NeverLooksBack, Impatient, Boundless])
def test_a_session_without_one_of_its_rules_is_found_out(worse: type[PushSession]) -> None:
    class Worse(World):
        machine = worse

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Worse, settings=FIRST)  # type: ignore[no-untyped-call]


# ── the tables, row by row ────────────────────────────────────────────────────────────────────────


def opened() -> PushSession:
    session = PushSession(RULES, 0.0)
    session.received(said(messageType="hello"), 0.0)
    _, job = session.work(0.0, full=False)
    assert job == Greet("", {})
    session.identified(AgentIdentity(UAID, 1, NEW, channels=frozenset(CHANNELS), saved=True))
    session.greeted({}, {}, 0.0, alone=True)
    return session


def read_to_the_end(session: PushSession) -> None:
    _, job = session.work(0.0, full=False)
    assert job == ReadPage(NEW, 0)
    session.page(NEW, [])
    assert session.rest() == []


def test_an_end_while_the_worker_is_busy_lets_it_finish_and_takes_nothing_more() -> None:
    session = opened()
    session.received(said(messageType="register", channelID=CHANNELS[0]), 0.0)

    assert session.finish(Close.NORMAL, "", 0.0) == [Signal.AWAIT_WORKER]
    assert session.phase is ENDING
    assert session.received("{}", 0.0) == []
    assert session.push(PushMessage(UAID, CHANNELS[0], "v", 1, 1), full=False) == (NodeAnswer.ABSENT, ())
    assert session.work(0.0, full=False) == ([], SaveChannel(CHANNELS[0], b""))
    assert session.has_work(PUSH_FINISH_SECONDS, full=False) is False
    assert session.rest() == [Leave(), CloseSocket(Close.NORMAL, "")]
    assert session.phase is LEFT


def test_an_end_while_nothing_is_done_is_the_end() -> None:
    session = opened()
    read_to_the_end(session)

    assert session.finish(Close.GOING_AWAY, "", 0.0) == [Leave(), CloseSocket(Close.GOING_AWAY, "")]
    assert session.finish(Close.NORMAL, "", 0.0) == []


@pytest.mark.parametrize("frame", [said(messageType="ping"), said(messageType="ack", updates=[])])
def test_before_its_hello_a_user_agent_has_nothing_to_say(frame: str) -> None:
    session = PushSession(RULES, 0.0)

    assert session.received(frame, 0.0) == [Signal.START_WORKER]
    actions, job = session.work(0.0, full=False)

    assert job is None
    assert actions == [Leave(), CloseSocket(Close.FAILED, "hello comes first")]


def test_whoever_is_silent_is_closed_and_a_hello_that_is_answered_has_time() -> None:
    session = PushSession(RULES, 0.0)
    assert session.opened(0.0) == [Arm(30.0)]
    session.received(said(messageType="hello"), 29.0)
    assert session.expired(30.0) == [Arm(30.0)]

    silent = PushSession(RULES, 0.0)

    assert silent.expired(30.0)[-1] == CloseSocket(Close.FAILED, "HandshakeTimeout")
    assert silent.phase is LEFT


def test_a_quiet_user_agent_is_pinged_and_finished_if_it_does_not_answer() -> None:
    session = opened()
    read_to_the_end(session)

    assert session.expired(300.0) == [Signal.PING, Arm(4.0)]
    session.ponged(301.0)
    assert session.expired(304.0) == [Arm(297.0)]
    session.expired(601.0)

    assert session.expired(605.0)[-1] == CloseSocket(Close.FAILED, "PongTimeout")


def test_a_client_that_pings_too_often_is_told_so() -> None:
    session = opened()
    read_to_the_end(session)

    assert session.received("{}", 100.0) == [SendFrame(text_frame(b"{}"))]
    assert session.received("{}", 101.0)[-1] == CloseSocket(Close.PINGS_TOO_OFTEN, "pings too often")


def test_commands_that_wait_are_bounded() -> None:
    session = PushSession(RULES, 0.0)
    for _ in range(PUSH_COMMANDS):
        session.received(said(messageType="nack"), 0.0)

    assert session.received(said(messageType="nack"), 0.0) == [
        Signal.AWAIT_WORKER, CloseSocket(Close.TOO_MUCH, "too many commands at once")
    ]  # fmt: skip
    assert session.phase is ENDING


def test_a_user_agent_that_lets_too_much_lie_is_dropped() -> None:
    session = PushSession(PushSessionRules(1, 3, 30.0, 300.0, 4.0, 60.0), 0.0)
    assert session.phase is SILENT
    session.identified(AgentIdentity(UAID, 1, NEW, channels=frozenset(CHANNELS[:1]), saved=True, waiting_upto=4))
    session.greeted({}, {}, 0.0, alone=True)
    storage = Storage()
    for number in range(4):
        storage.put(NEW, PushMessage(UAID, CHANNELS[0], f"v{number}", 1, 1))
    assert session.work(0.0, full=False) == ([], ReadPage(NEW, 0))

    assert session.page(NEW, storage.take(NEW, 0)) == []
    assert session.work(0.0, full=False) == ([], DropAgent((NEW,)))
    assert session.dropped("too many") == [Leave(), CloseSocket(Close.NORMAL, "too many")]
    assert session.saved is False


def test_of_a_channel_with_too_much_only_as_much_as_the_limit_is_sent_and_the_others_have_all() -> None:
    session = PushSession(PushSessionRules(9, 3, 30.0, 300.0, 4.0, 60.0), 0.0)
    session.identified(AgentIdentity(UAID, 1, NEW, channels=frozenset(CHANNELS), saved=True, waiting_upto=7))
    session.greeted({}, {}, 0.0, alone=True)
    storage = Storage()
    for number, channel in enumerate([*CHANNELS, *CHANNELS[:1] * 4, "gone"]):
        storage.put(NEW, PushMessage(UAID, channel, f"v{number}", 1, 1))
    assert session.work(0.0, full=False) == ([], ReadPage(NEW, 0))

    actions = session.page(NEW, storage.take(NEW, 0))

    assert [heard(one.frame)["version"] for one in actions if isinstance(one, SendFrame)] == ["v0", "v1", "v2", "v3"]
    assert [one for one in actions if isinstance(one, RecordState)] == [
        RecordState("dropped", "v4", NEW, 5, "msg_limit"),
        RecordState("dropped", "v5", NEW, 6, "msg_limit"),
        RecordState("dropped", "v6", NEW, 7, "unregistered"),
    ]
    assert session.work(0.0, full=False) == ([], Discard({NEW: [5, 6, 7]}))
