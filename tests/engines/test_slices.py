"""However much is due to go, it goes in short transactions, and whoever publishes has a turn between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.engines.sqlite import open_sqlite, retention
from penstock.values import Batch, Draft, Kind, NewItem

MONTH = "2026_11"
COUNT = 3_000
LIMITS = ("TRIM_ROWS", "TRIM_BYTES", "BURY_ROWS", "BURY_LOOKS", "GONE_ROWS")


async def fill_log(engine: Any, clock: ManualClock) -> None:
    due = clock.now_ms() + 1000
    for _ in range(COUNT // 1_000):
        await engine.log.append(Batch(tuple(Draft("/due", b"x", expires_ms=due) for _ in range(1_000))))
    clock.advance(2)


async def fill_mailbox(engine: Any, clock: ManualClock) -> None:
    await engine.mailbox.make_month(MONTH)
    for number in range(COUNT // 100):
        items = [NewItem(f"{number}-{n}", b"x", expires_ms=clock.now_ms() + 1000) for n in range(100)]
        await engine.mailbox.put("alice", MONTH, items)
    clock.advance(2)


async def fill_registry(engine: Any, clock: ManualClock) -> None:
    puts = (engine.registry.put(f"r/{n}", b"x", expires_ms=clock.now_ms() + 1000) for n in range(COUNT))
    await asyncio.gather(*puts)
    clock.advance(2)


async def fill_and_fold(engine: Any, clock: ManualClock) -> None:
    """A trim folds first, in steps of its own."""
    await fill_log(engine, clock)
    await engine.log.trim(1)


Fill = Callable[[Any, ManualClock], Awaitable[None]]
WORK: dict[str, tuple[Fill, Callable[[Any], Awaitable[Any]], int]] = {
    "expiry": (fill_log, lambda engine: engine.log.expire(), COUNT),
    "erase": (fill_log, lambda engine: engine.log.erase(range(1, COUNT + 10)), COUNT),
    "trim": (fill_and_fold, lambda engine: engine.log.trim(engine.log.followed), COUNT),
    "mailbox expiry": (fill_mailbox, lambda engine: engine.mailbox.expire(MONTH), COUNT),
    "forget": (fill_mailbox, lambda engine: engine.mailbox.forget("alice", MONTH), COUNT),
    "month": (fill_mailbox, lambda engine: engine.mailbox.drop_month(MONTH), 1),
    "registry": (fill_registry, lambda engine: engine.registry.expire(), COUNT),
}


async def publishes_beside(engine: Any, work: Awaitable[Any]) -> tuple[Any, int]:
    """What the work returns, and how many events were published, one after the other, while it went on."""
    task = asyncio.ensure_future(work)
    published = 0
    while not task.done():
        await engine.log.append(Batch((Draft("/beside", b"x"),)))
        published += 1
    return task.result(), published


@pytest.mark.parametrize("sabotage", [False, True])
@pytest.mark.parametrize("name", WORK)
async def test_publishes_have_their_turn_beside_what_goes(
    tmp_path: Path, name: str, sabotage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, work, expected = WORK[name]
    for limit in LIMITS:  # small slices, so that many turns and a few are far apart, or one that takes all
        monkeypatch.setattr(retention, limit, 1 << 40 if sabotage or limit == "TRIM_BYTES" else 50)
    clock = ManualClock()
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine:
        await fill(engine, clock)
        result, published = await publishes_beside(engine, work(engine))

        gone = len(result) if isinstance(result, list) else result
        assert gone >= expected
        assert (published >= COUNT // 100) is not sabotage


async def test_large_bodies_are_trimmed_a_few_at_a_time(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path, node="n1") as engine:
        for _ in range(24):
            await engine.log.append(Batch((Draft("/large", bytes(1 << 19)), Draft("/large", bytes(1 << 19)))))
        gone, published = await publishes_beside(engine, engine.log.trim(engine.log.followed))

        assert gone >= 48
        assert published >= 4


async def test_parts_go_with_their_entries_when_those_are_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BURY_LOOKS", 1)
    clock = ManualClock()
    async with open_sqlite(tmp_path, node="n1", clock=clock) as engine:
        due = clock.now_ms() + 1000
        ids = []
        for number in range(4):
            parts = (Draft("/s", b"part", kind=Kind.PART, expires_ms=due), Draft("/t", b"stays"))
            entry = Draft("/s", b"%d" % number, expires_ms=due)
            ids.append((await engine.log.append(Batch((entry, *parts, Draft("/s", b"p", kind=Kind.PART))))).first.id)
        clock.advance(2)

        assert await engine.log.expire(limit=3) == 3
        assert await engine.log.expire() == 1
        entries = (await engine.log.read_after(("/s", "/t"), 0, meta=True)).entries
        kinds = [entry.kind for entry in entries if entry.kind is not Kind.META]
        assert kinds.count(Kind.EXPIRED) == 12
        assert [entry.body for entry in entries if entry.kind is Kind.DATA] == [b"stays"] * 4


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], 0), ([5], 1), ([*range(1, 1_000)], retention.BURY_ROWS), ([n * 5_000 for n in range(1, 100)], 20)],
)
def test_how_many_go_at_once(ids: list[int], expected: int) -> None:
    assert retention.together(ids) == expected
