from __future__ import annotations

import asyncio

import pytest

from penstock.testing import TooLate, wait_until, wait_until_async


def test_the_first_true_value_is_returned() -> None:
    answers = iter([0, "", None, "found", "later"])

    assert wait_until(lambda: next(answers)) == "found"


def test_a_condition_that_never_holds_is_named() -> None:
    def the_moon_is_blue() -> bool:
        return False

    with pytest.raises(TooLate, match=r"the_moon_is_blue was not true within 0\.01 s"):
        wait_until(the_moon_is_blue, within=0.01)


def test_a_condition_is_looked_at_even_without_time() -> None:
    assert wait_until(lambda: 7, within=0) == 7


def test_the_loop_runs_on_while_it_waits() -> None:
    async def scenario() -> list[int]:
        seen: list[int] = []

        async def fill() -> None:
            for number in range(3):
                seen.append(number)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(fill())
            await wait_until_async(lambda: len(seen) == 3)
        return seen

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_a_condition_may_be_a_coroutine_function() -> None:
    answers = iter([False, True])

    async def condition() -> bool:
        return next(answers)

    assert asyncio.run(wait_until_async(condition)) is True


def test_too_late_in_a_loop_is_told() -> None:
    with pytest.raises(TooLate):
        asyncio.run(wait_until_async(lambda: False, within=0.01))
