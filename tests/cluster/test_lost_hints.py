"""Three nodes whose messages to each other are lost, late, doubled and out of order.

They are on three real NATS servers, or workers of one log process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedOK

from penstock.core.change_watch import LOOK_SECONDS, Changes
from penstock.core.clock import ManualClock
from penstock.doors.msgstream import MessageStreamDoor
from penstock.engines.jetstream import open_jetstream
from penstock.engines.local import LogServer, open_worker_engine
from penstock.engines.memory import MemoryEngine
from penstock.settings import LogSettings, MsgstreamSettings
from penstock.testing import wait_until_async
from tests.cluster.homes import new_prefix
from tests.doors.msgstream_place import Place
from tests.faulty_bus import Blind, Faults, FaultyBus

Opening = Callable[[str, ManualClock], AbstractAsyncContextManager[Any]]
"""Opens the engine of one node."""


@pytest.fixture(params=["nats", "workers"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Engines of nodes on three NATS servers, and of workers of one log process."""
    if request.param == "nats":
        nats, settings = request.getfixturevalue("nats_three"), LogSettings(prefix=new_prefix())
        return lambda name, clock: open_jetstream(nats.url, node=name, clock=clock, settings=settings)
    address, settings = tmp_path / "log.sock", LogSettings()
    return lambda name, clock: open_worker_engine(address, node=name, settings=settings, selective=False)


@asynccontextmanager
async def three(
    opening: Opening, folder: Path, faults: Faults, blind: Changes | None = None
) -> AsyncIterator[list[Place]]:
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(MemoryEngine(clock=clock))  # what workers share; nodes on NATS do not
        await stack.enter_async_context(LogServer(kept, folder / "log.sock"))
        nodes = []
        for name in ("one", "two", "three"):
            engine: Any = await stack.enter_async_context(opening(name, clock))
            node = Place(
                engine, clock, folder, MessageStreamDoor, MsgstreamSettings(), FaultyBus(engine.bus, faults),
                look_seconds=LOOK_SECONDS, changes=blind or engine.changes,
            )  # fmt: skip
            await node.start()
            stack.push_async_callback(node.stop)
            nodes.append(node)
        yield nodes


async def until_closed(socket: ClientConnection, within: float) -> list[str | bytes]:
    """What a connection gets before the server ends it."""
    got: list[str | bytes] = []
    with suppress(ConnectionClosedOK):
        while True:
            got.append(await asyncio.wait_for(socket.recv(), within))
    return got


async def check_the_newest_connection_gets_everything(nodes: list[Place], tries: int, within: float) -> None:
    """A session begins at one node, goes to a second, and is emitted to at a third, at the same moment."""
    one, two, other = nodes
    for number in range(tries):
        key = await one.login(actor := f"actor{number}")
        async with connect(one.url(key)) as old:
            # Its handshake is answered before its session is found: until it is, the other one may be the older.
            await wait_until_async(lambda actor=actor: one.door.sessions.known[actor].transport)
            async with connect(two.url(key)) as new:
                await check_a_pack_reaches_the_newest(other, actor, old, new, within)


async def check_a_pack_reaches_the_newest(
    other: Place, actor: str, old: ClientConnection, new: ClientConnection, within: float
) -> None:
    emitted = await other.emit(actor, ["hello"])
    assert emitted.json == {"packs": {actor: 1}}
    assert json.loads(await asyncio.wait_for(new.recv(), within)) == {"1": [["hello"]]}
    await until_closed(old, within)  # it may have got the pack as long as it was the newest


async def test_without_any_message_the_newest_connection_gets_everything(opening: Opening, tmp_path: Path) -> None:
    async with three(opening, tmp_path, Faults(lose=True)) as nodes:
        await check_the_newest_connection_gets_everything(nodes, 8, 20)


async def test_the_same_check_finds_nodes_that_see_nothing(opening: Opening, tmp_path: Path) -> None:
    async with three(opening, tmp_path, Faults(lose=True), Blind()) as nodes:
        with pytest.raises((TimeoutError, AssertionError)):
            await check_the_newest_connection_gets_everything(nodes, 3, 1.5)


async def test_late_doubled_and_reordered_messages_change_nothing(opening: Opening, tmp_path: Path) -> None:
    faults = Faults(hold=True, twice=True)
    async with three(opening, tmp_path, faults) as nodes:
        one, two, other = nodes
        key = await one.login("alice")
        async with connect(one.url(key)), connect(two.url(key)) as between:
            await wait_until_async(lambda: two.door.sessions.connected == 1)
            await other.emit("alice", ["m1"])
            async with connect(one.url(key)) as newest:
                assert json.loads(await asyncio.wait_for(newest.recv(), 20)) == {"1": [["m1"]]}
                faults.release()
                await other.emit("alice", ["m2"])
                assert json.loads(await asyncio.wait_for(newest.recv(), 20)) == {"2": [["m2"]]}
                assert "m2" not in str(await until_closed(between, 20))
