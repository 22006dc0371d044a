"""Plans of an export: every row in exactly one slice, no slice over midnight, never more than was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.core.export import (
    Block,
    ExportPlan,
    ExportRange,
    LogExport,
    PlanQuestion,
    Selection,
    day_name,
    day_of,
    make_plan,
)
from penstock.engines.memory import MemoryEngine
from penstock.values import Batch, Draft

DAY = 86_400_000
MIDNIGHT = 20_000 * DAY
Row = tuple[int, int, int]  # id, published_ms, body bytes


class Rows:
    """A log that is a list: what planning needs of one."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.asked = 0

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        self.asked += upto - after
        found = []
        for begin in range(after, upto, step):
            inside = [row for row in self.rows if begin < row[0] <= min(begin + step, upto)]
            if inside:
                days = [day_of(ms) for _, ms, _ in inside]
                found.append(Block(inside[-1][0], len(inside), sum(r[2] for r in inside), min(days), max(days)))
        return found

    async def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        for _ in ():
            yield b""

    async def close(self) -> None:
        return None


def plan_of(rows: Sequence[Row], question: PlanQuestion) -> ExportPlan:
    return asyncio.run(make_plan(Rows(rows), question))


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Ids with gaps, and a clock that mostly goes on, sometimes back, around midnight."""
    steps = draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(-2000, 4000), st.integers(0, 100)), min_size=0, max_size=120)
    )
    rows, id, ms = [], 0, MIDNIGHT - draw(st.integers(0, 60_000))
    for gap, forth, size in steps:
        id, ms = id + gap, ms + forth
        rows.append((id, ms, size))
    return rows


@st.composite
def questions(draw: st.DrawFn, rows: list[Row]) -> PlanQuestion:
    end = rows[-1][0] if rows else 5
    after = draw(st.integers(0, end))
    return PlanQuestion(
        after,
        draw(st.integers(after, end + 3)),
        parts=draw(st.integers(1, 9)),
        max_rows=draw(st.one_of(st.just(10_000), st.integers(1, 60))),
        max_bytes=draw(st.one_of(st.just(10**9), st.integers(1, 3000))),
    )


cases = logs().flatmap(lambda rows: st.tuples(st.just(rows), questions(rows)))


@given(cases)
def test_every_row_is_in_exactly_one_slice_of_its_day(case: tuple[list[Row], PlanQuestion]) -> None:
    rows, question = case
    plan = plan_of(rows, question)

    assert question.after == plan.after <= plan.upto <= question.upto
    lo = plan.after
    for part in plan.slices:
        inside = [row for row in rows if part.lo < row[0] <= part.hi]
        assert part.lo == lo < part.hi
        assert {day_name(day_of(ms)) for _, ms, _ in inside} == {part.day}
        assert (part.rows, part.bytes) == (len(inside), sum(size for _, _, size in inside))
        lo = part.hi
    left = [row for row in rows if lo < row[0] <= plan.upto]
    assert left == []
    assert lo == plan.upto or not plan.slices


@given(cases)
def test_limits_are_kept_and_the_plan_still_gets_on(case: tuple[list[Row], PlanQuestion]) -> None:
    rows, question = case
    plan = plan_of(rows, question)
    count, size = sum(part.rows for part in plan.slices), sum(part.bytes for part in plan.slices)
    asked = [row for row in rows if question.after < row[0] <= question.upto]

    assert count <= question.max_rows
    assert size <= question.max_bytes or count == 1
    assert count > 0 or not asked
    if plan.upto < question.upto:
        # It ended early because one more row would have been too much, and for no other reason.
        following = next(row for row in asked if row[0] > plan.upto)
        assert count + 1 > question.max_rows or size + following[2] > question.max_bytes


@given(st.integers(1, 1_500), st.integers(1, 40))
def test_slices_are_about_equal(count: int, parts: int) -> None:
    rows = [(id, MIDNIGHT, 10) for id in range(1, count + 1)]
    question = PlanQuestion(0, count, parts=parts)
    plan = plan_of(rows, question)

    assert len(plan.slices) <= parts
    assert max(part.rows for part in plan.slices) <= count / parts + question.step


def test_a_clock_that_goes_back_over_midnight_makes_a_slice_for_each_turn() -> None:
    times = [MIDNIGHT - 2, MIDNIGHT + 1, MIDNIGHT - 1, MIDNIGHT + 5]
    plan = plan_of([(id, ms, 1) for id, ms in enumerate(times, 1)], PlanQuestion(0, 4))

    before, behind = day_name(19_999), day_name(20_000)
    assert [(part.lo, part.hi, part.day) for part in plan.slices] == [
        (0, 1, before), (1, 2, behind), (2, 3, before), (3, 4, behind)
    ]  # fmt: skip


def test_a_limit_ends_the_look_at_the_log_too() -> None:
    rows = Rows([(id, MIDNIGHT, 1) for id in range(1, 3000)])
    asyncio.run(make_plan(rows, PlanQuestion(0, 50_000_000, max_rows=10)))

    assert rows.asked < 1_000_000


def test_a_range_without_rows_has_no_slices_and_is_done() -> None:
    assert plan_of([], PlanQuestion(3, 9)) == ExportPlan(3, 9, ())
    assert plan_of([(1, MIDNIGHT, 1)], PlanQuestion(1, 1)) == ExportPlan(1, 1, ())


async def test_the_plan_of_any_log_has_its_days() -> None:
    clock = ManualClock(MIDNIGHT - 1000)
    engine = MemoryEngine(clock=clock)
    for body in (b"1", b"22", b"333"):
        await engine.log.append(Batch((Draft("/a", body),)))
        clock.advance(1)
    end = engine.log.followed
    plan = await make_plan(LogExport(engine.log), PlanQuestion(0, end, parts=1))

    assert [part.day for part in plan.slices] == [day_name(19_999), day_name(20_000)]
    assert sum(part.rows for part in plan.slices) == end


def test_everything_is_wanted_without_patterns_and_system_streams_only_then() -> None:
    assert Selection().wants("/_ledger")
    assert not Selection((">",)).wants("/_ledger")
    assert Selection((">",), ("/users/7",)).wants("/users/7")
    assert not Selection((">",), ("/users/7",)).wants("/users/8")
