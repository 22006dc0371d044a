"""Exactly one node does a thing, whatever dies, stops or comes back (core/duties.py)."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.core.duties import Duties
from penstock.core.liveness import RENEW_SECONDS, SingleMember
from penstock.core.ownership import Rule
from tests.core.test_liveness import Three

THINGS = [f"pushers/{number}" for number in range(12)]


async def settle(three: Three, duties: dict[str, Duties], *living: str) -> None:
    """What doors do on every look: let go of what is not theirs, take what is."""
    for name in living:
        for thing in THINGS:
            if not duties[name].should(thing):
                await duties[name].release(thing)
    for name in living:
        for thing in THINGS:
            await duties[name].take(thing)


def doers(duties: dict[str, Duties], thing: str) -> list[str]:
    return [name for name, one in duties.items() if one.mine(thing)]


async def test_each_thing_is_done_by_one_node_and_they_share_them() -> None:
    three = Three()
    await three.join()
    duties = {name: Duties(three.registry, members) for name, members in three.nodes.items()}
    await settle(three, duties, "a", "b", "c")

    found = [doers(duties, thing) for thing in THINGS]
    assert all(len(one) == 1 for one in found)
    assert len({one[0] for one in found}) > 1
    thing = THINGS[0]
    holder = found[0][0]
    assert await duties["a"].holder(thing) == three.nodes[holder].me


async def test_a_dead_nodes_duties_are_taken_over_within_ten_seconds() -> None:
    three = Three()
    await three.join()
    duties = {name: Duties(three.registry, members) for name, members in three.nodes.items()}
    await settle(three, duties, "a", "b", "c")
    begun = three.times.now["a"]

    while not all(set(doers(duties, thing)) <= {"a", "b"} and doers(duties, thing) for thing in THINGS):
        await three.pass_time(RENEW_SECONDS, "a", "b")
        await settle(three, duties, "a", "b")

    assert three.times.now["a"] - begun <= 10


async def test_a_server_that_is_alone_does_everything_and_writes_nothing() -> None:
    three = Three()
    duties = Duties(three.registry, SingleMember())

    assert await duties.take("x")
    assert duties.mine("x")
    await duties.release("x")
    assert await three.registry.list("") == []


async def never_two(seed: int, kind: type[Duties]) -> None:
    """Nodes stop, come back and leave at random; at no moment do two do the same thing."""
    chance = random.Random(seed)
    three = Three()
    await three.join()
    duties = {name: kind(three.registry, members) for name, members in three.nodes.items()}
    for _ in range(60):
        awake = [name for name in three.nodes if chance.random() < 0.6] or ["a"]
        for _ in range(chance.randrange(1, 8)):
            three.times.advance(chance.choice([0.3, RENEW_SECONDS]))
            for name in awake:
                await three.nodes[name].renew()
                if chance.random() < 0.8:  # one that has just joined may not be seen yet
                    await three.nodes[name].watch()
                await settle(three, duties, name)
                for thing in THINGS:
                    assert len(doers(duties, thing)) <= 1, (seed, thing)


@pytest.mark.parametrize("seed", range(5))
async def test_two_nodes_never_do_the_same_thing(seed: int) -> None:
    await never_two(seed, Duties)


class Trusting(Duties):
    """The sabotage: believes for ever that what it took is its own."""

    def mine(self, thing: str) -> bool:
        return self._owned.mine(thing) is not None


class Greedy(Duties):
    """The sabotage: takes what it should do without asking who does it."""

    async def take(self, thing: str) -> bool:
        if self.should(thing) and self._members.holds and not self.mine(thing):
            await self._owned.claim(thing, lambda holder: "", rule=Rule.NEWEST)
        return self.mine(thing)


@pytest.mark.parametrize("kind", [Trusting, Greedy])
async def test_the_same_check_finds_nodes_that_do_not_ask(kind: type[Duties]) -> None:
    with pytest.raises(AssertionError):
        await asyncio.gather(*(never_two(seed, kind) for seed in range(5)))
