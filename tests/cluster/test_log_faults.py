"""Servers that die, hang and come back under load: what was acknowledged is there, once, in order.

The checker (`history.py`) judges every run; the sabotage is an engine that stores without expectations, which
the same check must convict.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Self

import pytest

from penstock.core.log import prepare
from penstock.engines.jetstream import JetStreamEngine, batch_planning, open_jetstream
from penstock.errors import Busy, OperatorError
from penstock.settings import LogSettings
from penstock.testing import wait_until_async
from penstock.testing.nats import NatsCluster
from penstock.values import Batch, Draft, Key
from tests.cluster.history import History, Promise, problems
from tests.cluster.homes import new_prefix

STREAMS = ("/a", "/b", "/c/d")
Fault = Callable[[NatsCluster, str], Coroutine[Any, Any, None]]


class Load:
    """Writers on every node that repeat under the same key until they are answered, and a reader on each."""

    def __init__(self, nodes: list[JetStreamEngine], history: History) -> None:
        self._nodes, self._history = nodes, history
        self._stopping = asyncio.Event()
        self.written = 0
        for number, node in enumerate(nodes):
            node.log.follow(history.reader(f"node {number}").extend)

    async def run(self, during: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write until *during* is over and some more was written after it."""
        async with asyncio.TaskGroup() as tasks:
            for number, node in enumerate(self._nodes):
                for task in range(3):
                    tasks.create_task(self._write(node, f"w{number}{task}", random.Random(number * 3 + task)))
            await wait_until_async(lambda: self.written > 50)
            try:
                await during()
                before = self.written
                await wait_until_async(lambda: self.written > before + 50)
            finally:
                self._stopping.set()

    async def _write(self, node: JetStreamEngine, name: str, chance: random.Random) -> None:
        number = 0
        while not self._stopping.is_set():
            stream, body = chance.choice(STREAMS), f"{name} {number}".encode()
            key = Key("test", stream, f"{name}/{number}", body)
            batch = Batch((Draft(stream, body),), key=key if chance.random() < 0.5 else None)
            await self._append(node, batch, key)
            number += 1
            await asyncio.sleep(0.005)  # a steady load, not the most that the machine can do

    async def _append(self, node: JetStreamEngine, batch: Batch, key: Key) -> None:
        """Without a key an append is tried once: nobody knows what became of one that failed."""
        while True:
            try:
                place = (await node.log.append(batch)).last
            except (OperatorError, Busy):
                if batch.key is None:
                    return
                continue
            self._history.promises.append(Promise(place.stream, place.id, place.index, batch.drafts[0].body))
            self.written += 1
            return


async def run(nats: NatsCluster, fault: Fault, addresses: Sequence[str] = ()) -> list[str]:
    """Load on two nodes while *fault* happens; what the checker finds. *addresses*: how each reaches the servers."""
    history, prefix = History(), new_prefix()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                open_jetstream(address, node=f"n{number}", settings=LogSettings(prefix=prefix, replicas=3))
            )
            for number, address in enumerate(addresses or (nats.url, nats.url))
        ]
        await prepare(opened[0].log)
        await Load(opened, history).run(lambda: fault(nats, f"{prefix}_log"))
        last = max(promise.id for promise in history.promises)
        for node in opened:
            await wait_until_async(lambda node=node: node.log.followed >= last)
        wholes = [[entry async for page in node.log.pages(0, node.log.followed) for entry in page] for node in opened]
        found = [problem for whole in wholes for problem in problems(history, whole)]
    assert len(history.promises) > 100
    return found


async def leader_is_killed(nats: NatsCluster, stream: str) -> None:
    leader = await asyncio.to_thread(nats.leader_of, stream)
    leader.kill()
    await asyncio.to_thread(nats.leader_of, stream, 30)
    await asyncio.to_thread(leader.restart)


async def leader_hangs(nats: NatsCluster, stream: str) -> None:
    leader = await asyncio.to_thread(nats.leader_of, stream)
    leader.pause()
    others = NatsCluster([server for server in nats.servers if server is not leader])
    try:
        await asyncio.to_thread(others.leader_of, stream, 30)
    finally:
        leader.resume()


async def each_is_restarted(nats: NatsCluster, stream: str) -> None:
    for server in nats.servers:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.restart)
        await asyncio.to_thread(nats.wait_until_ready)


async def all_are_killed(nats: NatsCluster, stream: str) -> None:
    for server in nats.servers:
        server.kill()
    for server in nats.servers:
        await asyncio.to_thread(server.restart)
    await asyncio.to_thread(nats.wait_until_ready)


FAULTS = (leader_is_killed, leader_hangs)
LONG_FAULTS = (each_is_restarted, all_are_killed)


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_was_acknowledged_is_there_once_and_in_order(nats_own: NatsCluster, fault: Fault) -> None:
    assert await run(nats_own, fault) == []


class Cable:
    """The network between one node and one server, which can be cut and mended."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut = False
        self.calls = 0  # connections so far

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()
        await self._server.wait_closed()

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def drop(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        self.cut = True

    def mend(self) -> None:
        """What is connected now is gone; new connections get through."""
        self.cut = False
        self._hang_up()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if not self.cut:
                    target.write(data)
                    await target.drain()
        target.transport.abort()


async def test_a_node_that_is_cut_off_from_all_servers_goes_on_when_it_is_not(nats_three: NatsCluster) -> None:
    async with AsyncExitStack() as stack:
        cables = [await stack.enter_async_context(Cable(server.port)) for server in nats_three.servers]
        through = "nats://" + ",".join(f"127.0.0.1:{cable.port}" for cable in cables)

        async def all_cables_are_cut(nats: NatsCluster, stream: str) -> None:
            for cable in cables:
                cable.drop()
            before = sum(cable.calls for cable in cables)
            await wait_until_async(lambda: sum(cable.calls for cable in cables) > before)  # it has noticed
            for cable in cables:
                cable.mend()

        assert await run(nats_three, all_cables_are_cut, (nats_three.url, through)) == []


async def test_a_node_is_not_ready_while_its_servers_store_nothing(nats_own: NatsCluster) -> None:
    async with open_jetstream(nats_own.url, node="a", settings=LogSettings(prefix=new_prefix(), replicas=3)) as node:
        await prepare(node.log)
        for server in nats_own.servers[1:]:
            server.pause()
        waiting = node.log.append(Batch((Draft("/a", b"x"),)))
        await wait_until_async(lambda: "does not store" in node.log.trouble)
        for server in nats_own.servers[1:]:
            server.resume()
        with suppress(OperatorError):  # it may have been given up before there was a leader again
            await waiting
        await node.log.append(Batch((Draft("/a", b"y"),)))

        assert node.log.trouble == ""


@pytest.mark.long
@pytest.mark.parametrize("fault", LONG_FAULTS)
async def test_also_when_every_server_goes(nats_own: NatsCluster, fault: Fault) -> None:
    assert await run(nats_own, fault) == []


async def test_the_same_check_convicts_an_engine_without_expectations(
    nats_three: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(nats: NatsCluster, stream: str) -> None:
        return None

    monkeypatch.setattr(batch_planning, "_EXPECT", b"Penstock-Ignored: %d\r\n")

    assert any("reordered" in problem for problem in await run(nats_three, nothing))
