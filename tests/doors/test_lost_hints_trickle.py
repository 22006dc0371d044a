"""Trickle channels when every message between nodes is lost: a node asks the registry each time whose a channel is.

So an owner that closes its channel needs to tell nobody, and one that is gone is missed by the next look at the
members, which a node does once a second (`core/liveness.py`). Here the test looks. With a node that remembers what it
saw first, the same checks fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.core.clock import ManualClock
from penstock.core.liveness import Members
from penstock.core.registry import Registry
from penstock.doors.trickle import Trickle
from penstock.doors.trickle.channels import Channels
from penstock.doors.trickle.cluster import ChannelOwners, KnownChannel
from penstock.engines.memory import MemoryEngine
from tests.doors.trickle_place import Place, place
from tests.faulty_bus import Faults, FaultyBus
from tests.nodes import Network

Check = Callable[[Path, type[Trickle]], Coroutine[Any, Any, None]]


class Remembering(ChannelOwners):
    """Looks for a channel once: the sabotage."""

    def __init__(self, registry: Registry, members: Members, *more: Any) -> None:
        super().__init__(registry, members, *more)
        self._found: dict[str, KnownChannel] = {}

    async def look(self, name: str) -> KnownChannel:
        if name not in self._found:
            self._found[name] = await super().look(name)
        return self._found[name]


class RememberingChannels(Channels):
    ownership = Remembering


class RememberingDoor(Trickle):
    kind = RememberingChannels


@asynccontextmanager
async def two(keys: Path, make: type[Trickle]) -> AsyncIterator[tuple[Place, Place, Members, Members]]:
    """Two nodes between which no message arrives, the second of them made by *make*; and their memberships."""
    network, clock, faults = Network(), ManualClock(), Faults(lose=True)
    buses = [FaultyBus(network.bus(name), faults) for name in ("a", "b")]
    async with (
        MemoryEngine(clock=clock) as engine,
        Members(engine.registry, buses[0]) as first,
        Members(engine.registry, buses[1]) as second,
        place(keys, engine=engine, clock=clock, members=first, bus=buses[0], node="a") as a,
        place(keys, make=make, engine=engine, clock=clock, members=second, bus=buses[1], node="b") as b,
    ):
        await first.watch()
        await second.watch()
        assert faults.carried, "there was nothing to lose"
        yield a, b, first, second


async def check_a_channel_that_is_closed_is_closed_everywhere(keys: Path, make: type[Trickle]) -> None:
    async with two(keys, make) as (a, b, _, _):
        assert await a.publish("news", 0, b"zero") == 200
        assert await b.read("news", 0) == b"zero"
        assert await b.publish("news", 1, b"one") == 200
        assert await a.read("news", 1) == b"one"
        # When its owner closes it
        assert await a.ask("DELETE", "news") == 200
        # Then the other does not go there any more, and has it itself from then on
        assert await b.publish("news", 0, b"again") == 200
        assert await a.read("news", 0) == b"again"
        assert b.door.channels.get("news") is not None


async def check_a_recorded_channel_outlives_its_node(keys: Path, make: type[Trickle]) -> None:
    async with two(keys, make) as (a, b, first, second):
        opened = await a.connect(
            b"POST /trickle/kept?record=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n"
            b"Content-Length: 0\r\n\r\n"
        )
        assert await opened.head() == 200
        assert await b.publish("kept", 0, b"zero") == 200
        assert a.door.channels.get("kept") is not None
        # When its owner is gone, and says so to nobody who hears it
        await first.__aexit__(None, None, None)
        await a.hang_up()
        # Then the other has it when it has looked
        await second.watch()
        assert await b.read("kept", 0) == b"zero"
        assert await b.publish("kept", 1, b"one") == 200
        assert b.door.channels.get("kept") is not None


CHECKS = [check_a_channel_that_is_closed_is_closed_everywhere, check_a_recorded_channel_outlives_its_node]


@pytest.mark.parametrize("check", CHECKS)
async def test_a_channel_is_found_where_it_is_though_every_message_is_lost(tmp_path: Path, check: Check) -> None:
    await check(tmp_path, Trickle)


@pytest.mark.parametrize("check", CHECKS)
async def test_the_same_check_finds_a_node_that_remembers_where_a_channel_was(tmp_path: Path, check: Check) -> None:
    with pytest.raises(AssertionError):
        await check(tmp_path, RememberingDoor)
