"""Many who wait for one thing are woken in slices, between which others have their turn."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core import waking
from penstock.core.waking import AT_ONCE, Waking
from tests.http.wires import on_uvloop

MANY = 3 * AT_ONCE + 10


class Waiting:
    """Somebody who waits, and notes his number when he looks."""

    def __init__(self, number: int, looked: list[int]) -> None:
        self._number, self._looked = number, looked

    def look(self) -> None:
        self._looked.append(self._number)


@on_uvloop
async def test_who_comes_alone_looks_at_once() -> None:
    looked: list[int] = []
    Waking().wake(Waiting(1, looked).look)

    assert looked == [1]


@pytest.mark.parametrize("sabotaged", [False, True])
@on_uvloop
async def test_an_innocent_has_his_turn_between_slices(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sabotaged:
        monkeypatch.setattr(waking, "AT_ONCE", 1 << 40)
    looked: list[int] = []
    line, seen = Waking(), []
    for number in range(MANY):
        line.wake(Waiting(number, looked).look)

    # The innocent comes again and again, as often as the loop has time for him.
    while not seen or seen[-1] < MANY:
        seen.append(len(looked))
        await asyncio.sleep(0)

    steps = {after - before for before, after in zip([0, *seen], seen, strict=False)}
    assert looked == list(range(MANY))
    assert (max(steps) <= AT_ONCE) == (not sabotaged)


@on_uvloop
async def test_nobody_stands_in_line_twice_and_who_fails_keeps_nobody_asleep() -> None:
    looked: list[int] = []
    line = Waking()
    everybody = [Waiting(number, looked) for number in range(MANY)]

    def fail() -> None:
        looked.append(-1)
        raise ZeroDivisionError

    line.wake(fail)
    for _ in range(3):
        for one in everybody:
            line.wake(one.look)
        line.wake(fail)
    for _ in range(2 * MANY // AT_ONCE):
        await asyncio.sleep(0)

    # The first slice was woken before anybody came again: they are woken once more, the others once.
    counts = [looked.count(number) for number in range(MANY)]
    assert set(counts[: AT_ONCE - 1]) == {2}
    assert set(counts[AT_ONCE - 1 :]) == {1}
    assert looked.count(-1) == 2
