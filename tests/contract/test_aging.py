"""`log.keep` by age, with clocks that were wrong: nothing goes that is not shown to be old."""

from __future__ import annotations

import pytest

from penstock.core.aging import aged_upto
from penstock.core.clock import ManualClock
from penstock.values import Batch, Draft

DAY = 24 * 3600.0
KEEP = 7 * DAY


async def fill(engine, count: int) -> list[int]:
    return [(await engine.log.append(Batch((Draft("/s", b"%d" % n),)))).last.id for n in range(count)]


async def aged(engine, clock: ManualClock, *, page: int = 1_000) -> int:
    return await aged_upto(engine.log, KEEP, clock.now_ms(), page=page)


async def test_entries_whose_clock_was_behind_take_no_fresh_ones_with_them(open_engine, clock):
    async with open_engine() as engine:
        old = await fill(engine, 3)
        clock.advance(KEEP + 1)
        await fill(engine, 20)
        clock.jump(-365 * DAY)
        await fill(engine, 10)
        clock.jump(365 * DAY)
        await fill(engine, 2)

        assert await aged(engine, clock) == old[-1]
        assert await aged(engine, clock, page=2) == old[-1]


async def test_entries_whose_clock_was_ahead_do_not_hold_up_the_old_ones_around_them(open_engine, clock):
    async with open_engine() as engine:
        await fill(engine, 2)
        clock.jump(365 * DAY)
        await fill(engine, 5)
        clock.jump(-365 * DAY)
        old = await fill(engine, 2)
        clock.advance(KEEP + 1)
        await fill(engine, 2)

        assert await aged(engine, clock) == old[-1]
        assert await aged(engine, clock, page=2) == old[-1]


async def test_entries_from_the_future_with_nothing_old_after_them_stay(open_engine, clock):
    async with open_engine() as engine:
        old = await fill(engine, 2)
        clock.jump(365 * DAY)
        await fill(engine, 5)
        clock.jump(-365 * DAY)
        clock.advance(KEEP + 1)

        assert await aged(engine, clock) == old[-1]
        await fill(engine, 1)
        assert await aged(engine, clock) == old[-1]


async def test_what_was_trimmed_is_not_looked_at_again(open_engine, clock):
    async with open_engine() as engine:
        old = await fill(engine, 5)
        clock.advance(KEEP + 1)
        young = await fill(engine, 1)
        await engine.log.trim(old[-1])

        assert [id for id, _ in await engine.log.times(0, 10)][-1:] == young
        assert await aged(engine, clock) <= engine.log.trimmed_upto


@pytest.mark.parametrize("step", [1, 3])
async def test_one_look_goes_no_further_than_its_step(open_engine, clock, step):
    async with open_engine() as engine:
        ids = await fill(engine, 9)
        clock.advance(KEEP + 1)

        upto = await aged_upto(engine.log, KEEP, clock.now_ms(), page=step, step=step)

        assert 0 < upto < ids[-1]
