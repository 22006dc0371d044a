"""What a node does by itself: months, expiry, `log.keep`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core import aging
from penstock.core.aging import JUMP_SECONDS, LISTEN_ROUNDS, ClockWatch
from penstock.core.clock import ManualClock
from penstock.core.log import Log
from penstock.core.registry import each
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite import open_sqlite
from penstock.limits import PAGE_ENTRIES
from penstock.node import housekeeping as housekeeping_module
from penstock.node.housekeeping import INTERVAL_SECONDS, Housekeeping
from penstock.values import Batch, Draft

NOVEMBER_30 = 1_796_040_000_000  # 2026-11-30T12:00:00Z


def housekeeping(engine: MemoryEngine, clock: ManualClock, data: Path, **keep: float) -> Housekeeping:
    return Housekeeping(engine.log, engine.mailbox, engine.registry, clock, data, **keep)  # type: ignore[arg-type]


async def test_this_month_and_the_next_are_made_in_advance(tmp_path: Path) -> None:
    clock = ManualClock(NOVEMBER_30)
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path)
        await house.round()
        assert await engine.mailbox.months() == ["2026_11", "2026_12"]

        clock.advance(24 * 3600)
        await house.round()
        assert await engine.mailbox.months() == ["2026_11", "2026_12", "2027_01"]


async def test_what_is_older_than_the_age_to_keep_goes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path, keep_seconds=3600)
        await engine.log.append(Batch((Draft("/a", b"old"),)))
        clock.advance(3500)
        await engine.log.append(Batch((Draft("/a", b"young"),)))
        await house.round()
        assert engine.log.trimmed_upto == 0

        clock.advance(200)
        await house.round()
        page = await engine.log.read_after(("/a",), engine.log.trimmed_upto)
        assert [entry.body for entry in page.entries] == [b"young"]
        assert (await engine.log.append(Batch((Draft("/a", b"next"),)))).last.index == 2


async def test_a_log_that_is_too_large_loses_its_oldest_entries(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine:
        house = Housekeeping(engine.log, engine.mailbox, engine.registry, clock, tmp_path, keep_bytes=2 * 1024 * 1024)
        for _ in range(60):
            await engine.log.append(Batch(tuple(Draft("/a", os.urandom(10_000)) for _ in range(10))))
        await house.round()

        assert await engine.log.stored_bytes() <= 2 * 1024 * 1024
        page = await engine.log.read_after(("/a",), engine.log.trimmed_upto, limit=1000)
        assert page.entries[-1].index == 599
        assert 50 < len(page.entries) < 250


async def test_expired_entries_are_cleared(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path)
        await engine.log.append(Batch((Draft("/a", b"short", expires_ms=clock.now_ms() + 1000),)))
        clock.advance(2)
        await house.round()

        assert house.expired == 1


class OneCall(Housekeeping):
    """Asks the log once: the sabotage."""

    async def _expire_entries(self) -> None:
        self.expired += await self._log.expire()


MANY = 20_001  # more than twice what one call lets go


@pytest.mark.parametrize("kind", [Housekeeping, OneCall])
async def test_however_many_entries_are_due_one_round_clears_them(tmp_path: Path, kind: type[Housekeeping]) -> None:
    clock = ManualClock()
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine:
        due = [Draft("/due", b"x", expires_ms=clock.now_ms() + 1000)] * MANY
        for begin in range(0, MANY, 1_000):
            await engine.log.append(Batch(tuple(due[begin : begin + 1_000])))
        house = kind(engine.log, engine.mailbox, engine.registry, clock, tmp_path)
        clock.advance(2)
        await house.round()

        assert (house.expired == MANY) == (kind is Housekeeping)
        assert await engine.log.expire() == (0 if kind is Housekeeping else 10_000)


# ── clocks that were set ───────────────────────────────────────────────────────────────────────

KEEP = 3600.0


async def test_what_was_published_before_the_clock_was_set_stays_for_its_whole_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path, keep_seconds=KEEP)
        await engine.log.append(Batch((Draft("/a", b"by a clock that was behind"),)))
        clock.jump(365 * 24 * 3600)
        await house.round()
        assert engine.log.trimmed_upto == 0

        # A restart does not make it forget.
        house = housekeeping(engine, clock, tmp_path, keep_seconds=KEEP)
        clock.advance(KEEP - 1)
        await house.round()
        assert engine.log.trimmed_upto == 0
        clock.advance(1)
        await house.round()
        assert engine.log.trimmed_upto == engine.log.followed


async def test_a_clock_that_was_ahead_for_a_while_costs_one_more_time_to_keep(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path, keep_seconds=KEEP)
        await engine.log.append(Batch((Draft("/a", b"fresh"),)))
        clock.jump(365 * 24 * 3600)
        await house.round()
        clock.jump(-365 * 24 * 3600)
        house = housekeeping(engine, clock, tmp_path, keep_seconds=KEEP)  # one that saw no jump
        await house.round()
        assert engine.log.trimmed_upto == 0

        clock.advance(KEEP + 1)
        await house.round()
        assert engine.log.trimmed_upto == engine.log.followed


async def test_nothing_expires_for_good_while_the_clock_was_just_set(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        house = housekeeping(engine, clock, tmp_path)
        dropped: list[int] = []

        async def daily() -> None:
            dropped.append(clock.now_ms())

        house.daily = daily
        await engine.log.append(Batch((Draft("/a", b"short", expires_ms=clock.now_ms() + 7200_000),)))
        clock.jump(24 * 3600)
        await house.round()
        clock.jump(-24 * 3600)
        await house.round()
        assert (house.expired, dropped) == (0, [])

        clock.advance(7201)
        await house.round()
        assert (house.expired, len(dropped)) == (1, 1)


class Nodes:
    """Nodes of one cluster, each with a clock of its own."""

    def __init__(self, engine: MemoryEngine, data: Path, **ahead: float) -> None:
        self.clocks = {node: ManualClock() for node in ahead}
        for node, seconds in ahead.items():
            self.clocks[node].jump(seconds)
        self.houses = {
            node: Housekeeping(
                engine.log, engine.mailbox, engine.registry, clock, data, keep_seconds=KEEP, node=node
            )
            for node, clock in self.clocks.items()
        }  # fmt: skip

    async def pass_time(self, *living: str, rounds: int = 2 * LISTEN_ROUNDS) -> None:
        """Half minutes in which the clocks go on, and those who live keep house."""
        for _ in range(rounds):
            for clock in self.clocks.values():
                clock.advance(INTERVAL_SECONDS)
            for node in living:
                await self.houses[node].round()


async def believe_the_own_clock(watch: ClockWatch, now_ms: int) -> bool:
    """The sabotage."""
    return False


@pytest.mark.parametrize("sabotage", [None, believe_the_own_clock])
@pytest.mark.parametrize("ahead", [365 * 24 * 3600, -365 * 24 * 3600])
async def test_a_node_whose_clock_was_wrong_from_the_start_trims_nothing(
    tmp_path: Path, sabotage: Callable[..., object] | None, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage:
        monkeypatch.setattr(ClockWatch, "_may_be_apart", sabotage)
    clock = ManualClock()
    clock.jump(min(0.0, ahead))  # whose entries these are; the other node is ahead of it
    async with MemoryEngine(clock=clock) as engine:
        await engine.log.append(Batch((Draft("/a", b"fresh"),)))
        nodes = Nodes(engine, tmp_path, n1=0.0, n2=ahead)

        await nodes.pass_time("n1", "n2")

        assert (engine.log.trimmed_upto == 0) is (sabotage is None)
        if sabotage is None:  # and once the wrong one is gone the others go on
            nodes.clocks["n1"].advance(KEEP)
            await nodes.pass_time("n1")
            assert engine.log.trimmed_upto == engine.log.followed


async def test_nodes_whose_clocks_agree_trim_although_others_were_there_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as engine:
        await engine.log.append(Batch((Draft("/a", b"old"),)))
        nodes = Nodes(engine, tmp_path, n1=0.0, n2=JUMP_SECONDS / 2, gone=10 * KEEP)
        await nodes.pass_time("gone", rounds=1)
        for one in nodes.clocks.values():
            one.advance(KEEP)

        await nodes.pass_time("n1", "n2", rounds=1)
        assert engine.log.trimmed_upto == 0  # they have not heard of each other yet

        await nodes.pass_time("n1", "n2")
        assert engine.log.trimmed_upto == engine.log.followed


async def test_clocks_of_many_nodes_that_are_gone_hide_nobodys_and_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aging, "FORGET_ROUNDS", 3 * LISTEN_ROUNDS)
    async with MemoryEngine(clock=ManualClock()) as engine:
        await engine.log.append(Batch((Draft("/a", b"fresh"),)))
        for number in range(PAGE_ENTRIES + 1):
            await engine.registry.put(f"clock/nodes/gone-{number}", b"0")
        nodes = Nodes(engine, tmp_path, n1=0.0, n2=365 * 24 * 3600)

        await nodes.pass_time("n1", "n2")
        assert engine.log.trimmed_upto == 0
        assert len([record async for record in each(engine.registry, "clock/nodes/")]) == PAGE_ENTRIES + 3

        await nodes.pass_time("n1", "n2")
        assert {record.key async for record in each(engine.registry, "clock/nodes/")} == {
            "clock/nodes/n1", "clock/nodes/n2",
        }  # fmt: skip


async def leaping(log: Log, keep_seconds: float, now_ms: int) -> int:
    """The sabotage: one wrong time is taken for the age of all that came before."""
    return await log.id_before(now_ms - int(keep_seconds * 1000))


@pytest.mark.parametrize("sabotage", [None, leaping])
async def test_a_wrong_clock_of_ten_entries_drops_none_of_four_thousand_fresh_ones(
    tmp_path: Path, sabotage: Callable[..., object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage:
        monkeypatch.setattr(housekeeping_module, "aged_upto", sabotage)
    clock = ManualClock()
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine:
        house = Housekeeping(engine.log, engine.mailbox, engine.registry, clock, tmp_path, keep_seconds=KEEP)
        for _ in range(5):
            await engine.log.append(Batch(tuple(Draft("/a", b"fresh") for _ in range(818))))
        clock.jump(-365 * 24 * 3600)
        await engine.log.append(Batch(tuple(Draft("/a", b"wrong") for _ in range(10))))
        clock.jump(365 * 24 * 3600)
        await house.round()

        assert (engine.log.trimmed_upto == 0) is (sabotage is None)
