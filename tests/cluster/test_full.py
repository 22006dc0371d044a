"""A NATS server without room: the node serves reads, says what fails, and goes on by itself once there is room."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.js.errors import ServiceUnavailableError

from penstock.core.background import Loop
from penstock.node import node as app
from penstock.testing import RunningServer, TooLate, start_nats, wait_until
from tests.api.client import ask, publish
from tests.bystander.sabotaged import start_sabotaged

ROOM_BYTES = 2 * 1024 * 1024
KEEP_SECONDS = 3  # more than it takes to fill the room after the first publish
BROADCAST = "/v1/webpush/broadcasts/news"


def hurry() -> None:
    """No guard less; housekeeping is done often, so that nobody waits for it."""
    app.INTERVAL_SECONDS = 0.1  # type: ignore[misc]


def hurry_and_let_loops_end() -> None:
    """A loop says that it failed, and ends."""
    hurry()

    async def run(self: Loop, *, at_once: bool) -> None:
        while await self._round():
            await self._wait()

    Loop._run = run  # type: ignore[method-assign]


class Filler:
    """Somebody else's stream, which takes all the room."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def take_all(self) -> None:
        connection = await nats.connect(self._url)
        stream = connection.jetstream()
        await stream.add_stream(name="filler", subjects=["filler"])
        with suppress(ServiceUnavailableError):  # it says so when there is no room
            while True:
                await stream.publish("filler", bytes(100_000))
        await connection.close()

    async def go(self) -> None:
        connection = await nats.connect(self._url)
        await connection.jetstream().delete_stream("filler")
        await connection.close()


def failing(node: RunningServer) -> set[str]:
    """The loops that `/ready` names; it says all the time that the node serves."""
    answer = ask(node, "GET", "/ready", token=None)
    assert (answer.status, answer.json["status"]) == (200, "ready")
    return {found["loop"] for found in answer.json.get("failing", [])}


def read(node: RunningServer) -> tuple[int, list[str]]:
    """The status of a read, and the bodies in it."""
    answer = ask(node, "GET", "/v1/read", stream="/a")
    return answer.status, [entry["data"] for entry in answer.json.get("entries", [])]


async def check_a_full_server(node: RunningServer, filler: Filler, within: float) -> None:
    assert publish(node, "/a", b"kept").status == 201
    await filler.take_all()

    # What wants room is refused, and says why; reads go on
    refused = [publish(node, "/a", b"refused"), ask(node, "PUT", BROADCAST, json.dumps({"version": "v1"}).encode())]
    assert [(answer.status, answer.code) for answer in refused] == [(507, "disk_full")] * 2
    # A trim must write down first how the streams go on that it empties: that fails, and nothing is lost
    wait_until(lambda: "housekeeping" in failing(node))
    assert read(node) == (200, ["kept"])
    assert publish(node, "/a", b"refused").code == "disk_full"

    await filler.go()

    wait_until(lambda: not failing(node), within)
    wait_until(lambda: read(node) == (410, []), within)  # trimmed, as it should have been
    assert publish(node, "/a", b"after").json["index"] == 1
    assert ask(node, "PUT", BROADCAST, json.dumps({"version": "v1"}).encode()).status == 200


@pytest.mark.parametrize("sabotage", [hurry, hurry_and_let_loops_end])
async def test_a_node_serves_reads_while_there_is_no_room_and_goes_on_afterwards(
    tmp_path: Path, sabotage: Callable[[], None]
) -> None:
    with start_nats(tmp_path / "nats", sync="2m", store_bytes=ROOM_BYTES) as servers:
        settings = {"log_replicas": 1, "log_keep": f"{KEEP_SECONDS}s"}
        with start_sabotaged(tmp_path / "data", sabotage, "--engine", servers.url, **settings) as node:
            filler = Filler(servers.url)
            if sabotage is hurry:
                await check_a_full_server(node, filler, within=30)
            else:
                with pytest.raises(TooLate):
                    await check_a_full_server(node, filler, within=1)
