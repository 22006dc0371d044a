"""The pusher's decisions, without an app, a log or a clock."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.eventhorizon import Cursor, PushAnswer, parse_cursor
from penstock.wire.eventhorizon_pusher import (
    AnswerInvalid,
    AppGone,
    AppRefused,
    Conversation,
    Flow,
    PushedPage,
    SubscriptionChanged,
    judge,
    read_answer,
    read_subscription_id,
)

SUB = "/_sub/app"
SLOTS = 4


def at(stream: str, offset: int) -> Cursor:
    return Cursor(stream, 0, offset, "x")


def success(stream: str, offset: int, *behind: str) -> PushAnswer:
    return PushAnswer("success", str(at(stream, offset)), behind_cursors=list(behind))


def misplaced(stream: str, offset: int) -> PushAnswer:
    return PushAnswer("incorrect_base_offset", str(at(stream, offset)))


def take(talk: Conversation, now: float = 0) -> Flow:
    flow = talk.take(now)
    assert flow is not None
    return flow


def learn(talk: Conversation, flow: Flow, offset: int, now: float = 0) -> None:
    """The app says where it is."""
    sent = PushedPage(parse_cursor(f"{flow.stream}:-1:-1"))
    answer = misplaced(flow.stream, offset)
    talk.check(flow, sent, answer)
    talk.answered(flow, sent, answer, now)


def push(
    talk: Conversation, flow: Flow, begin: int, end: int, answer: PushAnswer, *told: Cursor, now: float = 0,
    more: bool = False,
) -> None:  # fmt: skip
    sent = PushedPage(at(flow.stream, begin), at(flow.stream, end), told, more)
    talk.check(flow, sent, answer)
    talk.answered(flow, sent, answer, now)


def idle(talk: Conversation, now: float = 0) -> None:
    """Bring the subscription's own stream to its end."""
    learn(talk, take(talk, now), 0, now)
    talk.reached_end(take(talk, now), now)


def test_it_begins_with_the_subscriptions_own_stream_and_asks_where_the_app_is() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)

    flow = take(talk)

    assert (flow.stream, flow.acked) == (SUB, None)
    assert talk.take(0) is None
    learn(talk, flow, 65)
    again = take(talk)
    assert again is flow
    assert again.acked == at(SUB, 65)


def test_streams_that_the_app_is_behind_in_are_run_and_the_subscription_waits_for_them() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    learn(talk, take(talk), 0)
    told = [at("/a", 100), at("/b", 200)]
    push(talk, take(talk), 0, 300, success(SUB, 65, "/a:0:0:?", "/b:0:50:x"), *told)

    a, b = take(talk), take(talk)
    assert {a.stream, b.stream} == {"/a", "/b"}
    assert (a.acked, b.acked) == (Cursor("/a", 0, 0, "?"), at("/b", 50))
    push(talk, a, 0, 100, success("/a", 100))
    assert talk.take(0) is None
    push(talk, b, 50, 200, success("/b", 200))
    assert take(talk).stream == SUB


def test_a_known_idle_stream_runs_when_the_app_says_it_is_behind() -> None:  # dossier, defect iv
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 0)
    push(talk, take(talk), 0, 10, success("/a", 10))
    assert talk.take(0) is None
    talk.wake(SUB, at(SUB, 99))
    push(talk, take(talk), 0, 99, success(SUB, 0, "/a:0:4:x"), at("/a", 20))

    flow = take(talk)

    assert (flow.stream, flow.acked) == ("/a", at("/a", 4))


def test_a_wake_up_during_a_step_is_not_lost() -> None:  # dossier, defect iii
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 10)
    flow = take(talk)
    talk.wake("/a", at("/a", 20))

    talk.reached_end(flow, 0)

    assert take(talk) is flow


def test_a_wake_up_during_a_push_is_not_lost() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 0)
    flow = take(talk)
    talk.wake("/a", at("/a", 20))

    push(talk, flow, 0, 10, success("/a", 10))

    assert take(talk) is flow


def test_a_wake_up_for_an_idle_stream_whose_end_is_unknown_runs_it() -> None:  # dossier, defect v
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a")
    learn(talk, take(talk), 10)
    talk.reached_end(take(talk), 0)

    talk.wake("/a", at("/a", 20))

    assert take(talk).stream == "/a"


def test_a_wake_up_for_what_the_app_has_already_does_nothing() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 0)
    push(talk, take(talk), 0, 10, success("/a", 10))

    talk.wake("/a", at("/a", 10))

    assert talk.take(0) is None


def test_two_streams_that_move_at_once_are_both_woken() -> None:  # dossier, defect ii
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    talk.wake("/b", at("/b", 10))

    assert {take(talk).stream, take(talk).stream} == {"/a", "/b"}


def test_the_subscription_is_looked_at_again_without_any_hint() -> None:  # dossier, defect i
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)

    assert talk.take(4.9) is None
    assert talk.next_due() == 5
    assert take(talk, 5).stream == SUB


def test_an_app_that_does_not_move_gets_the_same_again_after_a_while() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 0)

    push(talk, take(talk), 0, 10, success("/a", 0))

    assert talk.take(1) is None
    assert {take(talk, 5).stream, take(talk, 5).stream} == {"/a", SUB}


def test_there_is_never_more_than_one_step_of_a_stream_and_never_more_than_the_slots() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    for number in range(20):
        talk.wake(f"/s{number}", at(f"/s{number}", 1))
        talk.wake(f"/s{number}", at(f"/s{number}", 2))

    running = [take(talk) for _ in range(SLOTS)]

    assert talk.take(0) is None
    assert len({flow.stream for flow in running}) == SLOTS


def test_streams_that_fail_do_not_starve_the_others() -> None:  # dossier, defect vi
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    for number in range(10):
        talk.wake(f"/bad{number}", at(f"/bad{number}", 9))
    for _ in range(10):
        talk.failed(take(talk), due=1)
    talk.wake("/good", at("/good", 9))
    assert take(talk, 0.5).stream == "/good"

    # When all that failed are due at once, half of the slots are still free for others
    taken = []
    while flow := talk.take(1):
        taken.append(flow)
    talk.wake("/better", at("/better", 9))
    assert len(taken) == SLOTS // 2
    assert take(talk, 1).stream == "/better"


def test_a_wake_up_does_not_shorten_the_wait_after_a_failure() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    talk.failed(take(talk), due=3)

    talk.wake("/a", at("/a", 20))

    assert talk.take(2) is None
    assert take(talk, 3).stream == "/a"


def test_a_retry_ends_the_wait_after_a_failure_and_no_other() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    talk.failed(take(talk), due=300)
    assert talk.take(1) is None

    talk.retry_now()

    assert take(talk, 1).stream == "/a"
    talk.app_failed(talk.flows["/a"], due=900)
    assert talk.take(2) is None
    talk.retry_now()
    assert take(talk, 2).stream == "/a"
    assert talk.take(2) is None  # the subscription's own stream rests, as before


def test_an_app_out_of_reach_is_felt_for_by_one_push_at_a_time() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    for name in ("/a", "/b", "/c"):
        talk.wake(name, at(name, 1))
    talk.app_failed(take(talk), due=2)

    assert talk.take(1.9) is None
    assert talk.next_due() == 2
    first = take(talk, 2)
    assert talk.take(2) is None
    learn(talk, first, 0, now=2)
    assert talk.take(2) is not None
    assert talk.take(2) is not None


def test_the_app_is_right_also_when_it_goes_back() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    learn(talk, take(talk), 0)
    push(talk, take(talk), 0, 10, success("/a", 10))
    talk.wake("/a", at("/a", 20))

    push(talk, take(talk), 10, 20, misplaced("/a", 4))

    assert take(talk).acked == at("/a", 4)


def test_a_page_that_is_not_the_last_is_followed_by_the_next_at_once() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a")
    learn(talk, take(talk), 0)

    push(talk, take(talk), 0, 10, success("/a", 10), more=True)

    assert take(talk).acked == at("/a", 10)


def test_another_subscription_id_ends_the_conversation() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    answer = PushAnswer("incorrect_subscription_id", correct_subscription_id="/_sub/other")
    with pytest.raises(SubscriptionChanged) as changed:
        talk.check(take(talk), PushedPage(parse_cursor(f"{SUB}:-1:-1")), answer)
    assert changed.value.id == "/_sub/other"


@pytest.mark.parametrize(
    "answer",
    [
        PushAnswer("success", "/other:0:5"),
        PushAnswer("success", "garbage"),
        PushAnswer("success", ""),
        PushAnswer("success", "/a:-1:-1"),
        PushAnswer("success", "/a:0:10", behind_cursors=["/secret:0:0"]),
        PushAnswer("success", "/a:0:10", behind_cursors=["bad"]),
        PushAnswer("incorrect_base_offset", "/a:0:0"),
        PushAnswer("incorrect_subscription_id", correct_subscription_id=SUB),
        PushAnswer("incorrect_subscription_id", correct_subscription_id=""),
    ],
)
def test_an_answer_without_sense_is_refused(answer: PushAnswer) -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)
    idle(talk)
    talk.wake("/a", at("/a", 10))
    flow = take(talk)

    with pytest.raises(AnswerInvalid):
        talk.check(flow, PushedPage(at("/a", 0), at("/a", 10)), answer)


def test_a_question_must_not_be_taken_for_a_push() -> None:
    talk = Conversation(SUB, repeat=5, slots=SLOTS)

    with pytest.raises(AnswerInvalid):
        talk.check(take(talk), PushedPage(parse_cursor(f"{SUB}:-1:-1")), success(SUB, 0))


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"Code":1}', b'{"Code":"maybe"}', b"\xff", b"<html>"])
def test_garbage_is_no_answer(body: bytes) -> None:
    with pytest.raises(AnswerInvalid):
        read_answer(body)


@pytest.mark.parametrize(
    ("status", "asked", "concerns_all"),
    [(204, None, False), (301, None, False), (429, 7.0, True), (500, None, False), (503, 7.0, True)],
)
def test_any_status_but_200_is_a_refusal_that_says_when_to_come_back(
    status: int, asked: float | None, concerns_all: bool
) -> None:
    with pytest.raises(AppRefused, match=f"answered {status}: not now") as refused:
        judge(status, b" not now ", f"{asked:.0f}" if asked else "")

    assert (refused.value.retry_after, refused.value.concerns_all) == (asked, concerns_all)


def test_410_is_the_end() -> None:
    with pytest.raises(AppGone):
        judge(410, b'{"Code":"success","AcceptedOffset":"/a:0:1"}', "1")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(body: bytes) -> None:
    with contextlib.suppress(AnswerInvalid):
        read_answer(body)


def test_the_answers_of_the_protocol_are_read_with_and_without_their_empty_fields() -> None:
    assert read_answer(b'{"Code":"success","AcceptedOffset":"/a:0:1","BehindCursors":[]}').accepted_offset == "/a:0:1"
    assert read_answer(b'{"Code":"incorrect_base_offset","AcceptedOffset":"/a:0:1","BehindCursors":null}')
    whole = b'{"Code":"incorrect_subscription_id","CorrectSubscriptionId":"/_sub/a"}'
    assert read_subscription_id(read_answer(whole)) == "/_sub/a"
    with pytest.raises(AnswerInvalid):
        read_subscription_id(PushAnswer("success", "/a:0:0"))


# ── the whole of it against a model: an app, a log, and anything that can go wrong ─────────────

events = st.lists(
    st.tuples(
        st.sampled_from(["append", "announce", "step", "lose", "fail", "time", "retry", "restart"]), st.integers(0, 3)
    ),
    max_size=80,
)


class World:
    """A log of byte positions, an app that holds some, and a pusher between them."""

    def __init__(self) -> None:
        self.log = {SUB: 0, "/s0": 0, "/s1": 0, "/s2": 0, "/s3": 0}
        self.activity: list[tuple[int, list[Cursor]]] = []
        self.app: dict[str, int] = {}
        self.now = 0.0
        self.talk = Conversation(SUB, repeat=5, slots=SLOTS)

    def append(self, stream: str, *, hint: bool) -> None:
        self.log[stream] += 10
        if hint:
            self.talk.wake(stream, at(stream, self.log[stream]))

    def announce(self) -> None:
        told = [at(s, end) for s, end in self.log.items() if s != SUB and end]
        if told:
            self.append(SUB, hint=True)
            self.activity.append((self.log[SUB], told))

    def step(self, *, lose: bool = False) -> bool:
        """Run the next step; *lose*: the app applies it, but its answer does not come back."""
        flow = self.talk.take(self.now)
        if flow is None:
            return False
        stream, own = flow.stream, self.app.get(flow.stream, 0)
        if flow.acked is None:
            sent, answer = PushedPage(parse_cursor(f"{stream}:-1:-1")), misplaced(stream, own)
        elif flow.acked.offset == self.log[stream]:
            self.talk.reached_end(flow, self.now)
            return True
        else:
            sent, answer = self._push(stream, flow.acked.offset)
        if lose:
            self.talk.failed(flow, self.now + 1)
        else:
            self.talk.check(flow, sent, answer)
            self.talk.answered(flow, sent, answer, self.now)
        return True

    def _push(self, stream: str, begin: int) -> tuple[PushedPage, PushAnswer]:
        end = min(begin + 20, self.log[stream])
        lines = [line for line in self.activity if stream == SUB and begin < line[0] <= end]
        told = tuple(cursor for _, cursors in lines for cursor in cursors)
        sent = PushedPage(at(stream, begin), at(stream, end), told, end < self.log[stream])
        own = self.app.get(stream, 0)
        if own != begin:
            return sent, misplaced(stream, own)
        behind = {c.stream: self.app.get(c.stream, 0) for c in told if c.offset > self.app.get(c.stream, 0)}
        first = next((after - 10 for after, cursors in lines if any(c.stream in behind for c in cursors)), end)
        self.app[stream] = first if stream == SUB else end
        return sent, success(stream, self.app[stream], *(f"{s}:0:{o}:x" for s, o in behind.items()))

    def settle(self) -> None:
        for _ in range(2000):
            if not self.step():
                if all(self.app.get(s, 0) == end for s, end in self.log.items()):
                    return
                self.now = max(self.now, self.talk.next_due() or self.now)


@given(events)
def test_whatever_happens_the_app_gets_everything_in_the_end(steps: list[tuple[str, int]]) -> None:
    world = World()
    for what, number in steps:
        match what:
            case "append":
                world.append(f"/s{number}", hint=number % 2 == 0)
            case "announce":
                world.announce()
            case "retry":
                world.talk.retry_now()
            case "step":
                world.step()
            case "lose":
                world.step(lose=True)
            case "fail":
                if flow := world.talk.take(world.now):
                    world.talk.app_failed(flow, world.now + number)
            case "time":
                world.now += number
            case "restart":
                world.talk = Conversation(SUB, repeat=5, slots=SLOTS)
    world.announce()
    world.settle()

    assert {s: world.app.get(s, 0) for s in world.log} == world.log
