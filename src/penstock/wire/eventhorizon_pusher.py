"""What a pusher knows of one app, and what it does next. Pure: time and chance come in as arguments.

The app is always right about where it is; the pusher keeps nothing that it could not ask for again. For
each stream there is one flow, and a flow is in one place:

    idle      nothing to do until it is woken
    ready     waits for a slot
    running   one step of it is under way: a question, or a read and a push
    later     waits for its time: after a failure, or because the app did not move

                wake                take               moved on, or woken meanwhile
      idle ───────────▶ ready ───────────▶ running ───────────▶ ready
        ▲                 ▲                   │ │
        │      time is up │                   │ └── failed, or did not move ──▶ later
        └─────────────────┼── reached the end ┘                                   │
                          └───────────────────────────────────────────────────────┘

A wake-up during a step is remembered, so none is lost. A flow that waits for its time holds no slot, and
flows that failed last time share half of the slots, so they never starve the others. The subscription's
own stream waits for the streams that the app said it was behind in, and goes on when they have caught up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from penstock.errors import NameInvalid
from penstock.wire.eventhorizon import (
    INCORRECT_BASE_OFFSET,
    INCORRECT_SUBSCRIPTION_ID,
    SUBSCRIPTIONS,
    SUCCESS,
    Cursor,
    CursorInvalid,
    PushAnswer,
    parse_cursor,
)
from penstock.wire.retrying import parse_retry_after


class AnswerInvalid(Exception):
    """The app said something that it should not have. Worth another try, later."""


class AppGone(Exception):
    """The app wants no more pushes, ever."""


class AppRefused(Exception):
    """The app answered with another status than 200. Worth another try, when it asks for it."""

    def __init__(self, status: int, body: bytes, retry_after: str) -> None:
        shown = body[:200].decode(errors="replace").strip()
        super().__init__(f"the app answered {status}" + (f": {shown}" if shown else ""))
        self.retry_after = parse_retry_after(retry_after)
        self.concerns_all = status in (429, 503)  # no other stream would fare better


class SubscriptionChanged(Exception):
    """The app has another subscription id than we thought: begin anew with it."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the app's subscription id is {id}")
        self.id = id


@dataclass(frozen=True, slots=True)
class PushedPage:
    """What the app was asked, or given: the lines of a stream from *begin* to *end*."""

    begin: Cursor
    end: Cursor | None = None  # None: it was only asked where it is
    told: tuple[Cursor, ...] = ()  # the positions of other streams that the lines tell of
    more: bool = False  # the log goes on after *end*


class FlowPlace(Enum):
    """The place of a flow."""

    IDLE = "idle"
    READY = "ready"
    RUNNING = "running"
    LATER = "later"


class Flow:
    """One stream on its way to the app."""

    __slots__ = ("acked", "again", "due", "failures", "goal", "stream", "waits_for", "where")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.acked: Cursor | None = None  # where the app is; None: ask it
        self.goal: Cursor | None = None  # how far the log is known to go
        self.where = FlowPlace.IDLE
        self.again = False  # it was woken while it ran
        self.failures = 0  # in a row
        self.due = 0.0
        self.waits_for: set[str] = set()  # streams that must get further first

    @property
    def behind(self) -> bool:
        """The app does not have all that is known to be there."""
        return self.goal is not None and (self.acked is None or self.goal.ahead_of(self.acked))

    def aim_at(self, cursor: Cursor) -> None:
        if self.goal is None or cursor.ahead_of(self.goal):
            self.goal = cursor


def judge(status: int, body: bytes, retry_after: str) -> PushAnswer:
    """What the app said. Raises *AppGone*, *AppRefused*, or *AnswerInvalid*."""
    if status == 410:
        raise AppGone("the app answered 410")
    if status != 200:
        raise AppRefused(status, body, retry_after)
    return read_answer(body)


def read_answer(body: bytes) -> PushAnswer:
    """What the app said; *AnswerInvalid* if that is no answer of this protocol."""
    try:
        answer = msgspec.json.decode(body, type=PushAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerInvalid(f"the answer is no JSON of the protocol: {error}") from None
    if answer.code not in (SUCCESS, INCORRECT_BASE_OFFSET, INCORRECT_SUBSCRIPTION_ID):
        raise AnswerInvalid(f"unknown code {answer.code[:60]!r}")
    return answer


def read_subscription_id(answer: PushAnswer) -> str:
    """The id that the app says is right."""
    id = answer.correct_subscription_id
    if answer.code != INCORRECT_SUBSCRIPTION_ID:
        raise AnswerInvalid(f"asked for the subscription id, the app answered {answer.code!r}")
    if not id.startswith(SUBSCRIPTIONS) or len(id) == len(SUBSCRIPTIONS):
        raise AnswerInvalid(f"subscription id {id[:80]!r} does not begin with {SUBSCRIPTIONS}")
    return id


class Conversation:
    """With one app, under one subscription id."""

    def __init__(self, subscription: str, *, repeat: float, slots: int) -> None:
        """*repeat* seconds until an app that did not move is tried again; *slots* pushes at once."""
        self.subscription, self._repeat, self._slots = subscription, repeat, slots
        self.flows: dict[str, Flow] = {}
        self._ready: deque[Flow] = deque()
        self._failing: deque[Flow] = deque()  # ready, too, but they failed last time
        self._later: list[tuple[float, int, Flow]] = []
        self._count = 0  # keeps the heap from comparing flows
        self._running = self._running_failing = 0
        self._held_until = 0.0  # the app as a whole is out of reach until then
        self.app_failures = 0
        self.wake(subscription)

    # ── waking and taking ──────────────────────────────────────────────────────────────────────

    def wake(self, stream: str, cursor: Cursor | None = None) -> None:
        """There may be something new in *stream*, up to *cursor* if that is known."""
        flow = self._flow(stream)
        if cursor is not None:
            flow.aim_at(cursor)
            if flow.acked is not None and not flow.behind:
                return
        if flow.where is FlowPlace.RUNNING:
            flow.again = True
        elif flow.where is FlowPlace.IDLE or (
            flow.where is FlowPlace.LATER and not flow.failures and not flow.waits_for
        ):
            self._enqueue(flow)

    def take(self, now: float) -> Flow | None:
        """The next flow to run, if there is one and a slot for it."""
        self._pull_due(now)
        slots = 1 if self.app_failures else self._slots  # an app that was out of reach is felt for first
        if now < self._held_until or self._running >= slots:
            return None
        # One that failed last time has its turn, too, but more of them only when nobody else waits.
        share = 1 if self._ready else max(1, self._slots // 2)
        if self._failing and self._running_failing < share:
            return self._start(self._failing)
        return self._start(self._ready) if self._ready else None

    def retry_now(self) -> None:
        """Somebody says that the app is well again: what failed is due at once."""
        self._held_until = 0.0
        for flow in self.flows.values():
            if flow.where is FlowPlace.LATER and flow.failures:
                self._enqueue(flow)

    def next_due(self) -> float | None:
        """When `take` may have something again without anything else happening."""
        if self._held_until and (self._ready or self._failing):
            return self._held_until
        return max(self._later[0][0], self._held_until) if self._later else None

    def _start(self, queue: deque[Flow]) -> Flow:
        flow = queue.popleft()
        flow.where, flow.again = FlowPlace.RUNNING, False
        self._running += 1
        self._running_failing += bool(flow.failures)
        return flow

    def _pull_due(self, now: float) -> None:
        if now >= self._held_until:
            self._held_until = 0.0
        while self._later and self._later[0][0] <= now:
            due, _, flow = heapq.heappop(self._later)
            if flow.where is FlowPlace.LATER and flow.due == due:
                self._enqueue(flow)

    # ── how a step ended ───────────────────────────────────────────────────────────────────────

    def reached_end(self, flow: Flow, now: float) -> None:
        """Nothing was there to push."""
        self._succeeded(flow)
        flow.goal = flow.acked
        self._caught_up(flow)
        if flow.again:
            self._enqueue(flow)
        else:
            self._rest(flow, now)

    def check(self, flow: Flow, sent: PushedPage, answer: PushAnswer) -> Cursor:
        """Where the app is, by its answer; *AnswerInvalid* if it makes no sense. Changes nothing."""
        accepted = self._accepted(flow, sent.begin, answer, question=sent.end is None)
        _behind(answer, sent.told)
        return accepted

    def answered(self, flow: Flow, sent: PushedPage, answer: PushAnswer, now: float) -> None:
        """Take an answer that was checked."""
        accepted, behind = parse_cursor(answer.accepted_offset), _behind(answer, sent.told)
        self._succeeded(flow)
        flow.acked = accepted
        if answer.code == INCORRECT_BASE_OFFSET:
            self._enqueue(flow)
            return
        if sent.end is not None:
            flow.aim_at(sent.end)
        self._follow(flow, behind, sent.told)
        if flow.waits_for or accepted.same_place(sent.begin):
            self._postpone(flow, now + self._repeat)
        elif flow.behind or sent.more or (flow.again and flow.goal is None):
            self._enqueue(flow)
        else:
            self._rest(flow, now)
            self._caught_up(flow)

    def _accepted(self, flow: Flow, asked: Cursor, answer: PushAnswer, *, question: bool) -> Cursor:
        if answer.code == INCORRECT_SUBSCRIPTION_ID:
            id = read_subscription_id(answer)
            if id != self.subscription:
                raise SubscriptionChanged(id)
            raise AnswerInvalid(f"the app refuses {id}, and says that it is right")
        accepted = _cursor(answer.accepted_offset, "AcceptedOffset")
        if accepted.stream != flow.stream:
            raise AnswerInvalid(f"AcceptedOffset is of {accepted.stream!r}, not of {flow.stream!r}")
        if accepted.chunk < 0 or accepted.offset < 0:
            raise AnswerInvalid(f"AcceptedOffset {accepted} is no position")
        if question and answer.code == SUCCESS:
            raise AnswerInvalid("the app took a position that does not exist")
        if answer.code == INCORRECT_BASE_OFFSET and accepted.same_place(asked):
            raise AnswerInvalid(f"the app refuses {asked}, and says that it is there")
        return accepted

    def failed(self, flow: Flow, due: float) -> None:
        """The step came to nothing; try again when it is *due*."""
        self._ended(flow)
        flow.failures += 1
        self._postpone(flow, due)

    def app_failed(self, flow: Flow, due: float) -> None:
        """The app as a whole is out of reach: nothing is tried before *due*."""
        self._ended(flow)
        self.app_failures += 1
        self._held_until = max(self._held_until, due)
        self._enqueue(flow)

    def ask_again(self, flow: Flow) -> None:
        """What we believed of the app's position cannot be right."""
        flow.acked = None

    # ── the rest ───────────────────────────────────────────────────────────────────────────────

    def _follow(self, flow: Flow, behind: dict[str, Cursor], told: Sequence[Cursor]) -> None:
        """Run every stream that the app is behind in; *flow* waits for them."""
        flow.waits_for = set(behind)
        for cursor in told:
            if cursor.stream in behind:
                self._flow(cursor.stream).aim_at(cursor)
        for stream, cursor in behind.items():
            other = self._flow(stream)
            if other.where is not FlowPlace.RUNNING:  # else its own answer is newer than this one
                other.acked = cursor
            self.wake(stream)

    def _caught_up(self, flow: Flow) -> None:
        """The subscription's stream may wait for this one."""
        own = self.flows[self.subscription]
        if flow.stream in own.waits_for:
            own.waits_for.discard(flow.stream)
            if not own.waits_for and own.where is FlowPlace.LATER and not own.failures:
                self._enqueue(own)

    def _flow(self, stream: str) -> Flow:
        flow = self.flows.get(stream)
        if flow is None:
            flow = self.flows[stream] = Flow(stream)
        return flow

    def _succeeded(self, flow: Flow) -> None:
        self._ended(flow)
        flow.failures = 0
        flow.waits_for = set()
        self.app_failures = 0

    def _ended(self, flow: Flow) -> None:
        self._running -= 1
        self._running_failing -= bool(flow.failures)
        flow.where = FlowPlace.IDLE

    def _enqueue(self, flow: Flow) -> None:
        flow.where = FlowPlace.READY
        (self._failing if flow.failures else self._ready).append(flow)

    def _rest(self, flow: Flow, now: float) -> None:
        """Nothing to do. The subscription's stream is looked at now and then, whatever became of the hints."""
        if flow.stream == self.subscription:
            self._postpone(flow, now + self._repeat)
        else:
            flow.where = FlowPlace.IDLE

    def _postpone(self, flow: Flow, due: float) -> None:
        flow.where, flow.due = FlowPlace.LATER, due
        self._count += 1
        heapq.heappush(self._later, (due, self._count, flow))


def _behind(answer: PushAnswer, told: Sequence[Cursor]) -> dict[str, Cursor]:
    """Where the app says it is in streams that it is behind in. It may only name those it was told of."""
    known = {cursor.stream for cursor in told}
    behind = {}
    for text in answer.behind_cursors or ():
        cursor = _cursor(text, "BehindCursors")
        if cursor.stream not in known:
            raise AnswerInvalid(f"the app is behind in {cursor.stream!r}, of which it was not told")
        behind[cursor.stream] = cursor
    return behind


def _cursor(text: str, what: str) -> Cursor:
    try:
        return parse_cursor(text)
    except (CursorInvalid, NameInvalid) as error:
        raise AnswerInvalid(f"{what}: {error}") from None
