"""Which nodes are alive: nobody's clock is trusted, and a dead node's place is taken once (core/liveness.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.clock import ManualClock
from penstock.core.liveness import DEAD_SECONDS, HOLD_SECONDS, RENEW_SECONDS, Members, SingleMember, chosen, node_of
from penstock.engines.memory import MemoryRegistry
from tests.nodes import Network


class Times:
    """A clock per node: they need not agree."""

    def __init__(self, *nodes: str) -> None:
        self.now = {node: 1000.0 * place for place, node in enumerate(nodes, start=1)}

    def of(self, node: str) -> Callable[[], float]:
        return lambda: self.now[node]

    def advance(self, seconds: float) -> None:
        for node in self.now:
            self.now[node] += seconds


class Three:
    """Three nodes that are moved by hand."""

    def __init__(self) -> None:
        self.registry, self.network = MemoryRegistry(ManualClock()), Network()
        self.times = Times("a", "b", "c")
        self.nodes = {n: Members(self.registry, self.network.bus(n), self.times.of(n)) for n in self.times.now}

    async def join(self) -> None:
        for members in self.nodes.values():
            await members.renew()
        await self.watch(*self.nodes)

    async def watch(self, *names: str) -> None:
        for name in names:
            await self.nodes[name].watch()

    async def pass_time(self, seconds: float, *living: str) -> None:
        """Time in which only these renew and watch."""
        passed = 0.0
        while passed < seconds:
            self.times.advance(RENEW_SECONDS)
            passed += RENEW_SECONDS
            for name in living:
                await self.nodes[name].renew()
            await self.watch(*living)

    def living(self, name: str) -> set[str]:
        return {node_of(member) for member in self.nodes[name].living()}


async def test_nodes_see_each_other_and_stay() -> None:
    three = Three()
    await three.join()
    before = three.nodes["a"].living()
    await three.pass_time(10 * DEAD_SECONDS, "a", "b", "c")

    assert three.living("a") == three.living("b") == three.living("c") == {"a", "b", "c"}
    assert three.nodes["a"].living() == before
    assert all(members.holds for members in three.nodes.values())


async def test_a_dead_node_is_gone_within_its_time_and_not_before() -> None:
    three = Three()
    await three.join()
    await three.pass_time(DEAD_SECONDS - RENEW_SECONDS, "a", "b")
    assert three.living("a") == {"a", "b", "c"}

    await three.pass_time(2 * RENEW_SECONDS, "a", "b")
    assert three.living("a") == three.living("b") == {"a", "b"}


async def test_a_node_stops_to_hold_before_anybody_takes_it_for_dead() -> None:
    three = Three()
    await three.join()
    held = []
    while "c" in three.living("a"):
        held.append(three.nodes["c"].holds)
        await three.pass_time(0.1, "a", "b")

    assert held[0]
    assert not three.nodes["c"].holds
    assert HOLD_SECONDS < DEAD_SECONDS


async def test_a_node_that_was_away_too_long_comes_back_under_another_name() -> None:
    three = Three()
    await three.join()
    before = three.nodes["c"].me
    await three.pass_time(2 * DEAD_SECONDS, "a", "b")

    await three.nodes["c"].renew()
    await three.watch("a", "c")

    assert three.nodes["c"].me != before
    assert node_of(three.nodes["c"].me) == "c"
    assert before not in three.nodes["a"].living()
    assert three.nodes["c"].me in three.nodes["a"].living()
    assert three.nodes["c"].holds


async def test_a_restarted_node_takes_its_place_at_once() -> None:
    three = Three()
    await three.join()
    again = Members(three.registry, three.network.bus("c"), three.times.of("c"))

    await again.renew()
    await three.watch("a")

    assert again.me in three.nodes["a"].living()
    assert three.nodes["c"].me not in three.nodes["a"].living()
    await three.nodes["c"].renew()  # the old one, if it still runs, finds itself gone
    assert three.nodes["c"].me != again.me


async def test_leaving_is_seen_at_once() -> None:
    registry, network = MemoryRegistry(ManualClock()), Network()
    async with Members(registry, network.bus("a")) as a:
        async with Members(registry, network.bus("b")) as b:
            await a.watch()
            assert a.living() == tuple(sorted([a.me, b.me]))
        assert not b.holds
        await a.watch()
        assert a.living() == (a.me,)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_everybody_chooses_the_same_and_little_moves(count: int) -> None:
    members = [f"n{number}:x" for number in range(count)]
    things = [f"pushers/{number}" for number in range(300)]
    before = {thing: chosen(members, thing) for thing in things}

    assert before == {thing: chosen(reversed(members), thing) for thing in things}
    after = {thing: chosen([*members, "new:x"], thing) for thing in things}
    assert all(after[thing] in (before[thing], "new:x") for thing in things)
    assert set(after.values()) == {*members, "new:x"}


def test_a_server_that_is_alone_always_holds() -> None:
    assert SingleMember().holds
    assert SingleMember().living() == (SingleMember().me,)
