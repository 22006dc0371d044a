"""What is in trouble: what failed and has not gone well since, from the ledger alone, bounded in memory and time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import trouble as trouble_module
from penstock.core.clock import ManualClock
from penstock.core.ledger import STREAM, Ledger, Recipient
from penstock.core.trouble import TroubleFilter, TroubleIndex
from penstock.engines.memory import MemoryEngine
from penstock.values import Batch, Draft
from penstock.wire.ledger import verdict

ALL = TroubleFilter()
APP, BROWSER = Recipient("eventhorizon", "/_sub/app"), Recipient("webpush", "b1")


class World:
    """A ledger on an engine in memory, and what looks for trouble in it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.ledger = Ledger(self.engine.log, self.clock, node="n")
        self.index = self.new_index()

    def new_index(self) -> TroubleIndex:
        return TroubleIndex(self.engine.log, self.ledger, self.clock)

    async def found(self, wanted: TroubleFilter = ALL) -> list[tuple[str, str, int, int]]:
        return [(one.recipient, one.state, one.first, one.tries) for one in await self.index.find(wanted)]


async def opened() -> World:
    world = World()
    await world.ledger.open(world.engine.registry)
    return world


async def test_a_retry_that_goes_well_is_no_trouble_any_more() -> None:
    world = await opened()
    for _ in range(3):
        world.clock.advance(1)
        world.ledger.record(APP, "sent", "/a", 5, 9)
        world.ledger.record(APP, "retried", "/a", 5, 9, reason="apprefused")
    world.ledger.record(BROWSER, "dropped", "/a", 5, 5, reason="refused")

    assert sorted(await world.found()) == [("/_sub/app", "retried", 5, 3), ("b1", "dropped", 5, 1)]
    world.clock.advance(1)
    world.ledger.record(APP, "sent", "/a", 5, 12)
    world.ledger.record(APP, "acked", "/a", 5, 12)
    assert await world.found() == [("b1", "dropped", 5, 1)]
    world.clock.advance(1)
    world.ledger.record(BROWSER, "sent", "/a", 5, 5)  # by a redrive
    assert await world.found() == []


async def test_who_asks_first_and_who_has_asked_before_see_the_same() -> None:
    world = await opened()
    world.ledger.record(APP, "retried", "/a", 1, 1)
    await world.found()
    world.ledger.record(APP, "acked", "/a", 1, 1)
    world.ledger.record_item(Recipient("webpush", "ua <b>"), "expired", "m-1", "2026_11", 1)
    known = await world.found()
    world.index = world.new_index()

    assert known == await world.found() == [("ua <b>", "expired", 0, 1)]


events = st.lists(st.tuples(st.sampled_from(["sent", "retried", "dropped", "dead", "acked"]), st.integers(1, 3)))


@given(events, st.integers(0, 20))
@settings(max_examples=80)
def test_whatever_was_acked_or_sent_last_is_not_in_trouble(history: list[tuple[str, int]], asked: int) -> None:
    """Entries of one recipient, each by itself, with a look in between; the last word on each counts."""

    async def check() -> None:
        world = await opened()
        last: dict[int, str] = {}
        for number, (state, id) in enumerate(history):
            world.clock.advance(1)
            world.ledger.record(BROWSER, state, f"/s{id}", id, id)
            ranked = {"dead": 0, "dropped": 1, "retried": 2}
            if state not in ranked or ranked[state] <= ranked.get(last.get(id, "retried"), 2):
                last[id] = state
            if number == asked:
                await world.found()

        assert {first: state for _, state, first, _ in await world.found()} == {
            id: state for id, state in last.items() if state not in ("sent", "acked")
        }

    asyncio.run(check())


async def test_the_verdict_of_a_delivery_in_trouble_is_one_of_trouble() -> None:
    assert verdict([("", "sent", 1), ("", "retried", 1)]) == "retried"  # as a failed attempt is recorded


async def test_a_filter_finds_by_state_reason_recipient_entry_and_words() -> None:
    world = await opened()
    world.ledger.record(APP, "retried", "/a", 5, 9, reason="unreachable")
    world.ledger.record(BROWSER, "dropped", "/b", 7, 7, reason="<b>404</b>")

    assert len(await world.found()) == 2
    for wanted in (
        TroubleFilter(state="retried"), TroubleFilter(reason="unreachable"), TroubleFilter(door="eventhorizon"),
        TroubleFilter(recipient="/_sub/app"), TroubleFilter(search="REACH"), TroubleFilter(entry=9),
        TroubleFilter(search="/_SUB"),
    ):  # fmt: skip
        assert await world.found(wanted) == [("/_sub/app", "retried", 5, 1)], wanted
    assert await world.found(TroubleFilter(search="<b>")) == [("b1", "dropped", 7, 1)]
    assert await world.found(TroubleFilter(reason="")) == []


async def test_what_is_over_a_day_old_goes_and_a_garbled_batch_hides_nothing() -> None:
    world = await opened()
    world.ledger.record(APP, "retried", "/a", 5, 9)
    await world.ledger.flush()
    await world.engine.log.append(Batch((Draft(STREAM, b"garbled"),)))
    world.clock.advance(23 * 3600)
    world.ledger.record(BROWSER, "dropped", "/b", 7, 7)
    assert len(await world.found()) == 2
    world.clock.advance(2 * 3600)

    assert await world.found() == [("b1", "dropped", 7, 1)]


class Counting(dict):
    """What is open, with a count of the looks at single ones."""

    looks = 0

    def __getitem__(self, key):
        self.looks += 1
        return super().__getitem__(key)


def look_at_all(self, who, stream, first, last, state, before) -> None:
    """Sabotage: each entry that went well is compared with all that did not."""
    for key in [key for key in self._open if self._open[key].recipient == who[1]]:
        if key[2] == stream and first <= key[4] <= last:
            self._drop(key)


@pytest.mark.parametrize("sabotage", [None, look_at_all])
@pytest.mark.parametrize("streams", [1, 300])
async def test_thousands_in_trouble_cost_what_goes_well_nothing(streams, sabotage, monkeypatch) -> None:
    """A recipient may report what it likes of itself: an operator's look must not stop the loop for it."""
    world, count = await opened(), 300
    await world.found()
    world.index._open = seen = Counting()
    if sabotage:
        monkeypatch.setattr(TroubleIndex, "_went_well", sabotage)
    for state, offset in (("dead", 0), ("retried", 5_000), ("sent", 1)):
        for id in range(1, 2 * count, 2):
            world.ledger.record(APP, state, f"/s{id % streams}", id + offset, id + offset)
            world.ledger.record(BROWSER, state, "/b", id, id)

    found = await world.found()
    assert sum(one[0] == "/_sub/app" for one in found) == 2 * count
    assert not [one for one in found if one[0] == "b1"]
    assert (seen.looks > count * count / 2) == bool(sabotage)


async def test_memory_is_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble_module, "TROUBLES", 10)
    world = await opened()
    for id in range(1, 31):
        world.clock.advance(1)
        world.ledger.record(BROWSER, "dropped", "/b", id, id)

    assert [first for _, _, first, _ in await world.found()] == list(range(30, 20, -1))
    assert world.index.forgotten == 20


async def test_of_a_long_ledger_the_newest_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await opened()
    for id in range(1, 401):
        world.clock.advance(1)
        world.ledger.record(BROWSER, "dropped", "/b", id, id, reason="x" * 100)
        await world.ledger.flush()
    whole = await world.found()
    monkeypatch.setattr(trouble_module, "TROUBLE_LEDGER_BYTES", 1000)
    world.index = world.new_index()
    part = await world.found()

    assert len(whole) == 400
    assert part == whole[: len(part)]
    assert 50 <= len(part) <= 200
    assert world.index.since_ms is not None
    assert world.clock.now_ms() - world.index.since_ms < 200_000
