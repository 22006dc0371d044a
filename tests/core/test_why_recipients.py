"""The way of one entry to everybody: the states that `why` gives for each, counted, searched, cut into pages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import why_recipients as way_module
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import STREAM, Ledger, Recipient
from penstock.core.why import Why
from penstock.core.why_recipients import ORDER, Way, WayFilter
from penstock.engines.memory import MemoryEngine
from penstock.errors import NotFound
from penstock.values import Batch, Draft, Entry
from penstock.wire.ledger import STATES

NAMES = ("alice", "bob", "<script>", "Zoë/1")
histories = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["sent", "retried", "dead", "acked", "expired", "confirmed"])),
    max_size=20,
)


class World:
    """A ledger on an engine in memory, and who looks things up in it."""

    def __init__(self) -> None:
        self.engine, self.clock = MemoryEngine(), ManualClock()
        self.ledger = Ledger(self.engine.log, self.clock, node="n")
        self.hub = Hub(self.engine.log)
        self.why = Why(self.engine.log, self.ledger, self.hub)
        self.way = Way(self.engine.log, self.hub, self.why)

    async def publish(self, stream: str) -> int:
        return (await self.engine.log.append(Batch((Draft(stream, b"x"),)))).last.id


async def opened() -> World:
    world = World()
    await world.ledger.open(world.engine.registry)
    return world


def test_every_state_of_the_ledger_has_its_place_in_the_list() -> None:
    assert {state.name for state in STATES} | {"waiting"} == set(ORDER)


@given(histories)
@settings(max_examples=60)
def test_each_recipient_has_the_state_that_why_gives(history: list[tuple[str, str]]) -> None:
    async def check() -> None:
        world = await opened()
        id = await world.publish("/a")
        for name, state in history:
            world.clock.advance(0.001)
            if state == "confirmed":
                world.ledger.confirm(Recipient("sps", name), id)
            else:
                world.ledger.record(Recipient("sps", name), state, "/a", id, id)
        answer = await world.way.entry(id, WayFilter())
        single = {name: (await world.why.entry(id, name)).verdict for name in NAMES}
        expected = {name: state for name, state in single.items() if state != "no_record"}

        assert {one.recipient: one.state for one in answer.recipients} == expected
        assert answer.states == Counter(expected.values())
        assert (answer.total, answer.found, answer.complete) == (len(expected), len(expected), True)
        assert list(answer.states) == sorted(answer.states, key=ORDER.index)

    asyncio.run(check())


async def fan_out(world: World, count: int) -> int:
    id = await world.publish("/film")
    everybody = [Recipient("sps", f"user-{number} <b>") for number in range(count)]
    for who in everybody:
        world.ledger.sent(who, "/film", id, id)
    world.ledger.record(Recipient("webpush", "user-7 <b>"), "dropped", "/film", id, id, reason="refused")
    for who in everybody[:100]:
        world.ledger.confirm(who, id)
    return id


async def test_a_fan_out_is_counted_whole_and_listed_by_pages_those_first_who_need_a_look() -> None:
    world = await opened()
    id = await fan_out(world, 20_000)
    first = await world.way.entry(id, WayFilter(limit=3))
    last = await world.way.entry(id, WayFilter(begin=20_000, limit=3))

    assert first.states == {"dropped": 1, "sent": 19_900, "acked": 100}
    assert (first.total, first.found) == (20_001, 20_001)
    assert first.doors == {"sps": 20_000, "webpush": 1}
    assert [one.state for one in first.recipients] == ["dropped", "sent", "sent"]
    assert first.recipients[0].steps[-1].reason == "refused"
    assert [one.state for one in last.recipients] == ["acked"]
    assert [step.state for step in last.recipients[0].steps] == ["sent", "acked"]


async def test_a_search_leaves_the_counts_of_all() -> None:
    world = await opened()
    id = await fan_out(world, 300)
    found = await world.way.entry(id, WayFilter(search="USER-7 <B>"))
    acked = await world.way.entry(id, WayFilter(state="acked", door="sps", begin=98))

    assert [(one.door, one.state) for one in found.recipients] == [("webpush", "dropped"), ("sps", "acked")]
    assert (found.found, found.total) == (2, 301)
    assert (acked.found, len(acked.recipients)) == (100, 2)


async def test_whoever_has_not_come_to_it_yet_is_waiting() -> None:
    class SlowReader:
        """A sink that takes nothing."""

        who, full = Recipient("v1", "slow"), True

        def deliver(self, entries: object) -> None:
            raise AssertionError("it is full")

        def deliver_last(self, entries: object) -> bool:
            return False

        def gap(self, after: int, upto: int) -> None:
            raise AssertionError

        def failed(self, error: Exception) -> None:
            raise error

    world = await opened()
    async with world.hub:
        world.hub.start(SlowReader(), ("/a",))
        id = await world.publish("/a")
        other = await world.publish("/b")

        assert (await world.way.entry(id, WayFilter())).states == {"waiting": 1}
        assert (await world.way.entry(other, WayFilter())).states == {}


async def test_a_message_has_its_way_by_its_id_and_a_batch_that_is_garbled_hides_no_other() -> None:
    world = await opened()
    world.ledger.record_item(Recipient("msgstream", "bob"), "accepted", "pack-1", "2026_11", 1)
    await world.ledger.flush()
    await world.engine.log.append(Batch((Draft(STREAM, b"garbled", attributes='{"items":"1"}'),)))
    world.ledger.record_item(Recipient("msgstream", "bob"), "acked", "pack-1", "2026_11", 1)
    world.ledger.record_item(Recipient("webpush", "carol"), "expired", "pack-1", "2026_11", 4)
    answer = await world.way.message("pack-1", WayFilter())

    assert (answer.states, answer.kind) == ({"expired": 1, "acked": 1}, "message")
    assert [step.state for step in answer.recipients[1].steps] == ["accepted", "acked"]
    with pytest.raises(NotFound):
        await world.way.message("pack-2", WayFilter())


async def test_more_than_one_answer_reads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await opened()
    id = await fan_out(world, 50)
    whole = await world.way.entry(id, WayFilter())
    monkeypatch.setattr(way_module, "WAY_RECIPIENTS", 20)
    for _ in range(3):
        world.ledger.sent(Recipient("v1", "late"), "/film", id, id)
        await world.ledger.flush()
    cut = await world.way.entry(id, WayFilter())

    assert (whole.complete, cut.complete) == (True, False)
    assert isinstance(await world.engine.log.entry(id), Entry)
