"""The sabotages of `test_webpush_ends.py` and `test_webpush_crowds.py`: sessions without one of their guards.

The same checks must fail with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.session import AgentSession
from penstock.testing import TooLate
from penstock.values import Item
from penstock.wire import webpush as wire
from penstock.wire.webpush import Close
from penstock.wire.webpush_actions import Action, DropAgent
from penstock.wire.webpush_session import PushSession
from tests.doors import test_webpush_crowds as crowds
from tests.doors import test_webpush_ends as ends
from tests.doors import webpush_place

Check = Callable[..., Coroutine[Any, Any, None]]


class HastyMachine(PushSession):
    """Ends at once: what was received and not yet carried out is forgotten."""

    __slots__ = ()

    def finish(self, code: Close, reason: str, now: float) -> list[Action]:
        return self.close(code, reason)

    def _queue(self, heard: wire.Heard | wire.Mistake, size: int, now: float) -> list[Action]:
        if isinstance(heard, wire.Mistake):
            return self.close(heard.code, heard.reason)
        return super()._queue(heard, size, now)


class Hasty(AgentSession):
    __slots__ = ()
    machine = HastyMachine


class PatientMachine(PushSession):
    """Has all the time there is for its end."""

    __slots__ = ()

    def has_work(self, now: float, *, full: bool) -> bool:
        return super().has_work(0.0, full=full)


class Patient(AgentSession):
    __slots__ = ()
    machine = PatientMachine


class Talkative(AgentSession):
    """Keeps its turn until nothing is left to do."""

    __slots__ = ()

    async def _work(self) -> None:
        async with self.home.worker_slots:
            while self._has_work():
                actions, job = self.state.work(self.home.time(), full=self.socket.full)
                self._perform(actions)
                self._perform(await self._do(job) if job is not None else ())
        self._perform(self.state.rest())


class UnweighedMachine(PushSession):
    """Counts the commands that wait, and not their bytes."""

    __slots__ = ()

    def _queue(self, heard: wire.Heard | wire.Mistake, size: int, now: float) -> list[Action]:
        return super()._queue(heard, 0, now)


class Unweighed(AgentSession):
    __slots__ = ()
    machine = UnweighedMachine


class LumpingMachine(PushSession):
    """Counts what lies there whichever channel it is of, and drops the user agent."""

    __slots__ = ()

    def page(self, month: str, items: Sequence[Item]) -> list[Action]:
        if len(items) > self._rules.msg_limit:
            self._follow_up = DropAgent((month,))
            return []
        return super().page(month, items)


class Lumping(AgentSession):
    __slots__ = ()
    machine = LumpingMachine


class Sabotaged(Agents):
    """Ends also when sessions wait for each other for ever."""

    async def __aexit__(self, *error: object) -> None:
        await self._tasks.close()
        await super().__aexit__(*error)


class WithHasty(Sabotaged):
    kind = Hasty


class WithPatient(Sabotaged):
    kind = Patient


class WithTalkative(Sabotaged, crowds.OneAtATime):
    kind = Talkative


class WithUnweighed(Sabotaged):
    kind = Unweighed


class WithLumping(Sabotaged):
    kind = Lumping


class Impatient(Sabotaged):
    """A session does not wait for what the one before it still does."""

    async def saved(self, uaid: str, generation: int) -> None:
        pass


class Courteous(Sabotaged):
    """A session waits for newer ones, too."""

    def _leaving(self, uaid: str, generation: int) -> list[asyncio.Task[object]]:
        return [task for task in super()._leaving(uaid, 2**63) if task is not asyncio.current_task()]


class Greedy(Sabotaged, crowds.OneAtATime):
    """Who waits for an older session keeps its turn meanwhile."""

    async def saved(self, uaid: str, generation: int) -> None:
        while tasks := self._leaving(uaid, generation):
            await asyncio.wait(tasks)


CASES: list[tuple[type[Agents], Check]] = [
    *((WithHasty, partial(ends.test_acks_that_came_before_the_end_count, how=how)) for how in ends.GOODBYES),
    *((WithHasty, partial(ends.test_an_unregister_that_came_before_the_end_counts, how=how)) for how in ends.GOODBYES),
    (WithHasty, partial(ends.test_the_message_limit_holds_for_who_acknowledges_and_goes, how="close frame")),
    (WithHasty, ends.test_what_was_sent_past_the_storage_and_acknowledged_at_the_last_moment_is_not_stored),
    (WithPatient, ends.test_what_takes_too_long_is_given_up_and_comes_again),
    (Impatient, ends.test_the_next_session_waits_for_the_end_of_the_one_before),
    (Courteous, crowds.test_sessions_that_follow_each_other_at_once_do_not_wait_for_each_other),
    (Greedy, crowds.test_who_waits_for_an_older_session_does_not_keep_it_from_its_turn),
    (WithTalkative, crowds.test_who_has_much_to_say_lets_others_have_their_turn),
    (WithUnweighed, crowds.test_commands_that_wait_are_bounded_in_bytes_too),
    (WithLumping, crowds.test_one_site_does_not_cost_a_user_agent_the_subscriptions_of_others),
    (WithLumping, crowds.test_who_waits_for_receipts_of_what_is_past_the_limit_hears_that_it_is_gone),
]


@pytest.mark.parametrize(("worse", "check"), CASES)
async def test_a_door_without_the_guard_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worse: type[Agents], check: Check
) -> None:
    monkeypatch.setattr(webpush_place, "WITHIN", 0.5)  # what these wait for never comes

    with pytest.raises((AssertionError, TimeoutError, TooLate, ConnectionClosed)):
        await check(tmp_path, make=worse)
