"""A connection to NATS ends, and leaves no socket and no task, whatever the server does and whenever it is cut."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from nats.aio.client import Client

from penstock.engines.jetstream import client as client_module
from penstock.engines.jetstream import connection as connection_module
from penstock.engines.jetstream.client import RawClient
from penstock.engines.jetstream.connection import NatsConnection
from penstock.engines.jetstream.engine import open_jetstream
from penstock.engines.jetstream.frames import NatsMessage
from penstock.errors import ConfigInvalid, EngineGone
from penstock.http.event_loop import run_loop
from penstock.testing import wait_until_async
from tests.engines import nats_peer as nats_peer_module
from tests.engines.nats_peer import INFO, nats_peer, sockets_to

End = Callable[[RawClient], Coroutine[Any, Any, None]]
run = run_loop
MUCH = 32 << 20  # more than the kernel takes for a peer that does not read
WITHIN = 20


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CLOSING_SECONDS", 0.3)
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", WITHIN)


@contextmanager
def sabotage(monkeypatch: pytest.MonkeyPatch, end: End | None) -> Iterator[None]:
    """Let *end* be how a client ends: what follows must then fail. None changes nothing."""
    if end is None:
        yield
        return
    clients: list[RawClient] = []

    async def noted(client: RawClient) -> None:
        clients.append(client)
        await end(client)

    async def checked(check: Coroutine[Any, Any, None]) -> None:
        try:
            await check
        finally:
            for client in clients:  # the test is to fail at its check, not at what it leaves behind
                client.abort()
            await asyncio.sleep(0)

    monkeypatch.setattr(RawClient, "end", noted)
    monkeypatch.setattr(sys.modules[__name__], "run", lambda check: run_loop(checked(check)))
    with pytest.raises((AssertionError, TimeoutError, RuntimeError)):
        yield


async def no_end(client: RawClient) -> None:
    """For a sabotage."""


async def nothing_is_left(port: int) -> None:
    """No socket to *port* and no task: both need turns of the loop to go, and no more than that."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert sockets_to(port) == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("behaviour", "sabotaged"),
    [("polite", False), ("fickle", False), *((name, wrong) for name in ("deaf", "half") for wrong in (False, True))],
)
def test_it_ends_though_the_server_takes_nothing(
    behaviour: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_with_much_unsent() -> None:
        async with NatsConnection([peer.url], name="test") as connection:
            connection.send(NatsMessage("much", b"x" * MUCH))
            if behaviour == "fickle":
                await wait_until_async(lambda: not connection.connected)
                connection.client.write([b"PUB late 0\r\n\r\n"])
            if behaviour == "half":  # it is connected again, waits for a greeting, and does so for two seconds
                await wait_until_async(lambda: peer.accepted > 1 and connection.client.is_connecting)
                connection.client.write([b"x" * MUCH])

    async def check() -> None:
        async with asyncio.timeout(2 if sabotaged else WITHIN):
            await leave_with_much_unsent()
        await nothing_is_left(peer.port)

    with nats_peer(behaviour) as peer, sabotage(monkeypatch, Client.close if sabotaged else None):
        run(check())


@pytest.mark.parametrize("behaviour", ["silent", "greeting"])
def test_a_server_that_does_not_greet_is_given_up(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 0.3)

    async def check() -> None:
        with pytest.raises(EngineGone):
            await NatsConnection([peer.url], name="test").__aenter__()
        await nothing_is_left(peer.port)

    with nats_peer(behaviour) as peer:
        run(check())


class CutAt:
    """Runs a coroutine, and cancels it at one of the points where it waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], point: int) -> None:
        self._coroutine, self._point = coroutine, point
        self.points = 0

    def __await__(self) -> Generator[Any, Any, None]:
        thrown: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration:
                return
            self.points += 1
            task = asyncio.current_task()
            if self.points == self._point and task is not None:
                task.cancel()
            thrown = None
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 (it goes on, into the coroutine)
                thrown = error


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotaged"])
@pytest.mark.parametrize("behaviour", ["polite", "deaf"])
def test_it_can_be_cut_wherever_it_waits(behaviour: str, sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def live() -> None:
        async with NatsConnection([peer.url], name="test") as connection:
            connection.send(NatsMessage("much", b"x" * MUCH))
            await asyncio.sleep(0)

    async def cut_at(point: int) -> bool:
        """Whether there was such a point."""
        cut = CutAt(live(), point)

        async def wait() -> None:
            with suppress(asyncio.CancelledError):
                await cut

        async with asyncio.timeout(WITHIN):
            await asyncio.create_task(wait())
        await nothing_is_left(peer.port)
        return cut.points >= point

    async def check() -> None:
        point = 1
        while await cut_at(point):
            point += 1
        assert point > 5

    with nats_peer(behaviour) as peer, sabotage(monkeypatch, no_end if sabotaged else None):
        run(check())


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotaged"])
def test_it_can_be_left_in_the_midst_of_a_reconnect(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(turns: int) -> None:
        async with asyncio.timeout(WITHIN), NatsConnection([peer.url], name="test") as connection:
            await wait_until_async(lambda: not connection.connected)
            for _ in range(turns):
                await asyncio.sleep(0)
        await nothing_is_left(peer.port)

    with nats_peer("fickle") as peer, sabotage(monkeypatch, no_end if sabotaged else None):
        for turns in range(0, 400, 10):
            run(check(turns))


@pytest.mark.parametrize("behaviour", ["refusing", "forbidding"])
def test_after_an_error_of_the_server_it_is_connected(behaviour: str) -> None:
    async def check() -> None:
        async with asyncio.timeout(WITHIN), NatsConnection([peer.url], name="test") as connection:
            await wait_until_async(lambda: connection._last_error)
            await wait_until_async(lambda: connection.connected)
            await connection.client.flush()  # type: ignore[no-untyped-call]

    with nats_peer(behaviour) as peer:
        run(check())
        assert peer.accepted == (2 if behaviour == "refusing" else 1)


def test_servers_that_do_not_take_the_largest_entry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_peer_module, "INFO", INFO.replace(b"67108864", b"65536"))

    async def check() -> None:
        with pytest.raises(ConfigInvalid, match="messages of 65,536 bytes at most, and an entry may need 1,048,576"):
            await open_jetstream(peer.url, node="test").__aenter__()
        await nothing_is_left(peer.port)

    with nats_peer("polite") as peer:
        run(check())
