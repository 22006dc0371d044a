"""Wires under stress: slow devices, late ends, killed servers, nonsense. Each check is also run on something broken."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.doors.sps import Sps
from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import Wires
from penstock.testing import RunningServer, TooLate, start_server, wait_until, wait_until_async
from penstock.values import Batch, Draft
from tests.api.client import ask
from tests.doors.sps_client import Wire as Client
from tests.doors.sps_client import notify_id
from tests.doors.sps_place import Place, place

BIG = b"x" * 200_000


# ── a device that takes nothing ────────────────────────────────────────────────────────────────


def check_a_stalled_device_is_cut(server: RunningServer, within: float = 20) -> None:
    """It is cut, nobody else notices, and it comes back to everything."""
    with Client(server, uid="1").opened(), Client(server, uid="2").opened() as quick:
        ids = [notify_id(server, "user", BIG, uid="1") for _ in range(60)]
        other = notify_id(server, "user", b"quick", uid="2")
        assert quick.line()["id"] == other
        wait_until(lambda: not ask(server, "GET", "/online", uid="1").json["online"], within=within)
    with Client(server, uid="1", o=0).opened() as again:
        assert [line["id"] for line in again.lines(60)] == ids


def test_a_device_that_takes_no_byte_is_cut_and_comes_back_to_everything(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_stall_timeout=1) as server:
        check_a_stalled_device_is_cut(server)


def test_the_same_check_finds_a_server_that_never_cuts(tmp_path: Path) -> None:
    settings = {"server_stall_timeout": 3600, "server_drain_seconds": 0.1}
    with start_server(tmp_path / "data", **settings) as server, pytest.raises(TooLate):
        check_a_stalled_device_is_cut(server, within=4)


# ── topics that change while a device is behind ────────────────────────────────────────────────


UNDER_THEIR_TOPICS = [("earth", len(BIG))] * 30 + [("mars", len("on time"))] * 3


class ForgetsFormerTopics(DeviceWire):
    """Applies new topics to everything that was not read yet."""

    def change(self, topics: tuple[str, ...], narrow: object) -> None:
        super().change(topics, None)
        self._changes = None
        self.narrow(None)


class Hasty(Sps):
    kind = type("HastyWires", (Wires,), {"kind": ForgetsFormerTopics})


async def slow_subscriber(here: Place, query: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One whose socket holds little, and that is not read from."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, here.listener.address)
    reader, writer = await here.connect(sock=connection)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(f"GET /subscribe?{query} HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n".encode())
    return reader, writer


async def check_topics_hold_for_what_came_under_them(keys: Path, make: type[Sps]) -> list[tuple[str, int]]:
    async with place(keys, recent=4, tail=2, make=make) as here:
        reader, writer = await slow_subscriber(here, "uid=7&tid=earth")
        await wait_until_async(lambda: here.online("7"))
        for number in range(30):
            await here.engine.log.append(
                Batch((Draft("/rooms/earth", BIG), Draft("/rooms/mars", b"early %d" % number)))
            )
        assert here.hub.feeds[0].behind
        assert await here.ask("PUT", "/rooms?uid=7&tid=mars") == 200
        for _ in range(3):
            await here.engine.log.append(Batch((Draft("/rooms/earth", b"late"), Draft("/rooms/mars", b"on time"))))
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await reader.readuntil(b"\r\n\r\n")
        seen = []
        while len(seen) < 33:
            line = json.loads(await asyncio.wait_for(reader.readline(), 20))
            if "id" in line:
                seen.append((line["tid"], len(line["data"])))
        return seen


async def test_a_device_that_is_behind_gets_what_came_under_its_former_topics(tmp_path: Path) -> None:
    seen = await check_topics_hold_for_what_came_under_them(tmp_path, Sps)

    assert seen == UNDER_THEIR_TOPICS


async def test_the_same_check_finds_a_door_that_forgets_them(tmp_path: Path) -> None:
    seen = await check_topics_hold_for_what_came_under_them(tmp_path, Hasty)

    assert seen != UNDER_THEIR_TOPICS


# ── the late end of an old wire ────────────────────────────────────────────────────────────────


class TrustsEveryEnd(Wires):
    """Takes a device offline when any of its wires ends, as the first sps once did."""

    def ended(self, wire: DeviceWire) -> None:
        self._open.pop(wire.who.name, None)


class Trusting(Sps):
    kind = TrustsEveryEnd


async def stays_online(keys: Path, make: type[Sps]) -> bool:
    """Whether a device is online whose second wire has replaced its first."""
    async with place(keys, make=make) as here:
        await here.subscribe("uid=7&hid=phone")
        reader, _ = await here.subscribe("uid=7&hid=phone")
        await reader.readline()
        return await here.ask("POST", "/subsist?uid=7&hid=phone") == 204


async def test_the_end_of_a_replaced_wire_takes_nobody_offline(tmp_path: Path) -> None:
    assert await stays_online(tmp_path, Sps)


async def test_the_same_check_finds_a_door_that_believes_every_end(tmp_path: Path) -> None:
    assert not await stays_online(tmp_path, Trusting)


# ── kill -9 ────────────────────────────────────────────────────────────────────────────────────


def test_what_was_acknowledged_comes_once_and_in_order_over_kill_9(server: RunningServer) -> None:
    # Given a device that reads while events are published
    ids, seen = [], 0
    for _ in range(3):
        with Client(server, uid="7", o=seen).opened() as wire:
            ids += [notify_id(server, "user", uid="7") for _ in range(20)]
            while seen != ids[-5]:  # it has not read the last ones when the server dies
                line = wire.line()
                assert line["id"] > seen
                assert line["id"] == ids[ids.index(seen) + 1 if seen else 0]
                seen = line["id"]
            server.kill()
        server.restart()

    # Then it goes on exactly where it was
    with Client(server, uid="7", o=seen).opened() as wire:
        assert [line["id"] for line in wire.lines(4)] == ids[-4:]


# ── nonsense ───────────────────────────────────────────────────────────────────────────────────

TARGETS = (
    ("GET", "/online"), ("GET", "/rooms"), ("PUT", "/rooms"), ("POST", "/join"), ("POST", "/leave"),
    ("POST", "/subsist"),
    ("POST", "/notify_to_user"), ("POST", "/notify_to_room"), ("POST", "/notify_to_all"), ("POST", "/v1/tokens"),
    ("HEAD", "/subscribe"),
)  # fmt: skip
names = st.sampled_from(["uid", "hid", "tid", "o", "i", "s", "u", "t", "r", "format", "access_token", "nonsense"])
values = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["earth", "/orders/>", "a,b", "/users/1", "/_ledger", "/a/*", ">", "", "1", "42", "raw"]),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace").decode()),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=st.sampled_from(TARGETS), params=st.dictionaries(names, values, max_size=4), body=st.binary(max_size=50))
def test_no_request_makes_the_door_fail(
    shared_server: RunningServer, target: tuple[str, str], params: dict[str, str], body: bytes
) -> None:
    answer = ask(shared_server, *target, body, **params)

    assert answer.status < 500
    assert answer.status != 0
