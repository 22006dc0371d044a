"""One timer for everything that waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.background import Background
from penstock.http import timers
from penstock.http.timers import CALL, SLICE, TICK_SECONDS, Timed, Wheel
from tests.http.wires import ManualTimer


class Alarm(Timed):
    def __init__(self, timer: ManualTimer) -> None:
        super().__init__()
        self._timer, self.rang = timer, list[float]()

    def expired(self) -> None:
        self.rang.append(self._timer.time())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.floats(0.1, 20), st.just(None)),  # seconds to be armed for, or disarmed
            st.floats(0, 5),  # time that passes after it
        ),
        max_size=30,
    )
)
def test_everybody_is_called_when_due_and_only_then(steps: list[tuple[int, float | None, float]]) -> None:
    # Given four things that are armed, put off, brought forward and disarmed at random
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarms = [Alarm(timer) for _ in range(4)]
    due: dict[int, float] = {}
    rang: dict[int, int] = dict.fromkeys(range(4), 0)

    def check() -> None:
        for number, alarm in enumerate(alarms):
            if len(alarm.rang) > rang[number]:
                # Then nothing rings that was not armed, and never before its time
                assert number in due
                assert alarm.rang[-1] >= due[number]
                assert len(alarm.rang) == rang[number] + 1
                rang[number] += 1
                del due[number]
            elif number in due:
                # and nothing is more than a little late
                assert timer.time() < due[number] + 3 * TICK_SECONDS

    for number, seconds, passing in steps:
        if seconds is None:
            wheel.disarm(alarms[number])
            due.pop(number, None)
        else:
            wheel.arm(alarms[number], seconds)
            due[number] = timer.time() + seconds
        for _ in range(int(passing / TICK_SECONDS)):
            timer.advance(TICK_SECONDS)
            check()


def test_there_is_one_timer_and_none_when_nothing_waits() -> None:
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarms = [Alarm(timer) for _ in range(100)]
    for alarm in alarms:
        wheel.arm(alarm, 3)

    assert (timer.booked, wheel.armed) == (1, 100)
    timer.advance(5)
    assert (timer.booked, wheel.armed) == (0, 0)


def test_what_is_forgotten_is_let_go() -> None:
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarm = Alarm(timer)
    wheel.arm(alarm, 60)
    wheel.arm(alarm, 5)
    wheel.forget(alarm)

    assert wheel.armed == 0
    timer.advance(100)
    assert alarm.rang == []


def test_a_closed_wheel_calls_nobody() -> None:
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarm = Alarm(timer)
    wheel.arm(alarm, 1)
    wheel.close()
    timer.advance(5)

    assert (alarm.rang, timer.booked) == ([], 0)


class Broken(Alarm):
    def expired(self) -> None:
        super().expired()
        raise ZeroDivisionError


def test_one_that_fails_keeps_nobody_from_being_called_then_or_later() -> None:
    # Given one that fails among others that are due with it, and one that is due later
    timer, background = ManualTimer(), Background()
    wheel = Wheel(timer, background)
    together = [Broken(timer) if number % 2 else Alarm(timer) for number in range(11)]
    later, last = Broken(timer), Alarm(timer)
    for alarm in together:
        wheel.arm(alarm, 1)
    wheel.arm(later, 3)
    wheel.arm(last, 5)

    # When the first are due, then all of them are called, and it is counted
    timer.advance(2)
    assert [len(alarm.rang) for alarm in together] == [1] * 11
    assert background.failures["deadlines"] == 5

    # and the next has its turn, is told, and nothing is wrong any more when one has succeeded
    timer.advance(2)
    assert (len(later.rang), [each.loop for each in background.failing]) == (1, ["deadlines"])
    timer.advance(2)
    assert (len(last.rang), background.failing) == (1, [])


@pytest.mark.parametrize("sabotaged", [False, True])
def test_many_that_are_due_at_once_are_called_in_slices(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sabotaged:
        monkeypatch.setattr(timers, "SLICE", 1 << 40)
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarms = [Alarm(timer) for _ in range(3 * SLICE // CALL)]
    for alarm in alarms:
        wheel.arm(alarm, 1)

    def rang_after(seconds: float) -> int:
        timer.advance(seconds)
        return sum(len(alarm.rang) for alarm in alarms)

    rounds = [rang_after(TICK_SECONDS) for _ in range(9)]
    sliced = sorted(set(rounds)) == [0, SLICE // CALL, 2 * SLICE // CALL, 3 * SLICE // CALL]
    assert (sliced, wheel.armed) == (not sabotaged, 0)


@pytest.mark.parametrize("count", [1, SLICE, 3 * SLICE])
def test_what_was_put_off_is_moved_in_slices_too_and_none_is_forgotten(count: int) -> None:
    timer = ManualTimer()
    wheel = Wheel(timer)
    alarms = [Alarm(timer) for _ in range(count)]
    for alarm in alarms:
        wheel.arm(alarm, 1)
        wheel.arm(alarm, 5)
    timer.advance(4)
    assert (sum(len(alarm.rang) for alarm in alarms), wheel.armed) == (0, count)
    timer.advance(2 + TICK_SECONDS * count * CALL / SLICE)
    assert all(len(alarm.rang) == 1 for alarm in alarms)
