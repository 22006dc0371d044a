"""`/v1/stats` and the list of streams by traffic, through a real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.api.auth import open_keys
from penstock.api.v1 import stats as stats_module
from penstock.api.v1.stats import SecondJson, StatsListener
from penstock.node.node import Node
from penstock.settings_reading import load
from penstock.testing import RunningServer, wait_until
from tests.api.client import Tail, ask, publish
from tests.api.lake_rig import record
from tests.doors import trickle_client
from tests.doors.eventhorizon_client import Model, add_pusher, create, scripted, subscribe


def seconds(server: RunningServer, since: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(server, "GET", "/v1/stats", since=since).json["seconds"]
    return found


def newest(server: RunningServer) -> dict[str, Any]:
    """The last second; nothing in the first."""
    return (seconds(server) or [{}])[-1]


@contextmanager
def live(server: RunningServer) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/v1/stats/live", headers={"Authorization": f"Bearer {server.admin_token}"})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def next_event(answer: http.client.HTTPResponse) -> dict[str, Any]:
    while not (line := answer.readline()).startswith(b"data: "):
        assert line
    found: dict[str, Any] = json.loads(line[6:])
    return found


def test_what_was_published_and_delivered_is_in_the_seconds(server: RunningServer) -> None:
    with Tail(server, "/told") as tail:
        for _ in range(20):
            publish(server, "/told")
        publish(server, "/told", b"line\n" * 30, Content_Type="application/x-ndjson")  # handed over in one go
        tail.lines(50)
        wait_until(lambda: sum(one.get("delivered", {}).get("v1", 0) for one in seconds(server)) == 50)
        shown = seconds(server)
        assert sum(one.get("published", 0) for one in shown) == 50
        assert any(one.get("p50_ms") is not None and one["p99_ms"] >= one["p50_ms"] for one in shown)
        assert shown[-1]["live"] == {"v1": 1}
        assert shown[-1]["feeds"] == 1
        assert [one["ms"] for one in shown] == sorted(one["ms"] for one in shown)
        assert [one for one in seconds(server, shown[-1]["ms"]) if one["ms"] <= shown[-1]["ms"]] == []


def connected(server: RunningServer, **wanted: int) -> bool:
    return {door: newest(server).get("live", {}).get(door, 0) for door in wanted} == wanted


def test_readers_and_publishers_of_trickle_and_apps_of_event_horizon_count_as_connected(server: RunningServer) -> None:
    with scripted(Model("/_sub/app")) as app:
        create(server, "/_sub/app", "/lines")
        subscribe(server, "/lines", "/_sub/app")
        film = trickle_client.made(server, "film")
        id = add_pusher(server, app.url)
        # A publisher that has sent nothing yet, one reader of its segment and one of the next
        with closing(trickle_client.Post(server, film, 0)) as publisher:
            first, second = trickle_client.waiting(server, film, 0, 1)
            wait_until(lambda: connected(server, trickle=3, eventhorizon=1))
            # While it is written the first reader has its answer; when it has ended only the second still waits
            publisher.send(b"frame")
            first.opened()
            wait_until(lambda: connected(server, trickle=3))
            publisher.end()
            assert first.rest() == b"frame"
            wait_until(lambda: connected(server, trickle=1))
            for reader in (first, second):
                reader.close()
        assert ask(server, "DELETE", f"/v1/pushers/{id}").status == 204
        wait_until(lambda: connected(server, trickle=0, eventhorizon=0))


LARGE = "x" * 4_000  # of one second, so that 2,000 of them are more than sockets hold


class TakesWhateverComes(StatsListener):
    """The sabotage: it does not ask whether the peer has taken anything."""

    def send(self, event: bytes, chunked: bytes) -> None:
        self.outlet.send(chunked)


async def check_one_who_takes_nothing(folder: Path) -> None:
    """Beside one who listens and never reads, another hears each second, and little waits for the first."""
    settings = load(given=["server.listen=127.0.0.1:0"])
    async with Node(settings, folder) as node:
        port, token = int(node.url.rpartition(":")[2]), (folder / "admin.token").read_text().strip()
        call = f"GET /v1/stats/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        with socket.socket() as hostile:
            hostile.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            hostile.setblocking(False)
            await asyncio.get_running_loop().sock_connect(hostile, ("127.0.0.1", port))
            hostile.send(call)
            await asyncio.get_running_loop().sock_recv(hostile, 8)  # it is answered, and reads no more
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            writer.write(call)
            await reader.readuntil(b"\n\n")
            stats = node._stats
            assert len(stats._listeners) == 2
            for number in range(1, 2_001):
                stats.add(SecondJson(number, 1000, slowest=LARGE))
                while b'{"ms":%d,' % number not in await reader.readuntil(b"\n\n"):
                    pass
            waiting = [listener.outlet._pipe.pending for listener in stats._listeners if listener.outlet._pipe]
            writer.close()
        assert max(waiting) <= settings.server.write_high + 2 * len(LARGE), waiting


async def test_one_who_takes_nothing_holds_up_nobody_and_costs_little(tmp_path: Path) -> None:
    await check_one_who_takes_nothing(tmp_path)


async def test_a_listener_that_is_sent_whatever_it_takes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "StatsListener", TakesWhateverComes)
    with pytest.raises(AssertionError):
        await check_one_who_takes_nothing(tmp_path)


def test_a_listener_hears_each_second_as_the_history_has_it(server: RunningServer) -> None:
    wait_until(lambda: seconds(server))
    with live(server) as first, live(server) as second:
        assert first.getheader("Content-Type") == "text/event-stream"
        heard = [next_event(first) for _ in range(3)]
        assert [next_event(second) for _ in range(3)][-1]["ms"] >= heard[-1]["ms"]
        assert heard == [one for one in seconds(server) if heard[0]["ms"] <= one["ms"] <= heard[-1]["ms"]]


def test_the_server_stops_with_listeners(server: RunningServer) -> None:
    with live(server) as answer:
        next_event(answer)
        assert server.stop() == 0
        while answer.readline():
            pass


def test_the_slowest_reader_is_named_with_its_lag(server: RunningServer) -> None:
    with Tail(server, "/slow", consumer="slow reader") as slow, Tail(server, "/slow") as quick:
        for _ in range(500):
            publish(server, "/slow", b"x" * 20_000)  # more than sockets hold
            quick.line()
        wait_until(lambda: newest(server).get("slowest") == "v1 slow reader")
        assert newest(server)["lag"] > 0
        slow.lines(500)
        wait_until(lambda: "lag" not in newest(server))


def test_how_far_the_lake_is_comes_from_the_pipelines_records(server: RunningServer) -> None:
    for _ in range(3):
        publish(server, "/a")
    wait_until(lambda: seconds(server))
    wait_until(lambda: seconds(server))
    assert "archived" not in newest(server)
    for table in ("events", "ledger"):
        record(server, f"lake/{table}", {"fence": 1, "done": 5, "done_ms": 1000, "intent": None})
    wait_until(lambda: newest(server).get("archived") == 5)
    assert newest(server)["upto"] > 5
    assert newest(server)["pipeline_ms"] > 1000


def test_only_the_admin_sees_them(shared_server: RunningServer) -> None:
    token = open_keys(shared_server.data).issue("7", subscribe=(">",), ttl=60)
    for path in ("/v1/stats", "/v1/stats/live"):
        assert ask(shared_server, "GET", path, token=token).status == 403
        assert ask(shared_server, "GET", path, token=None).status == 401
        assert ask(shared_server, "GET", path, nonsense=1).status == 400


def listed(server: RunningServer, **params: object) -> list[str]:
    return [one["stream"] for one in ask(server, "GET", "/v1/streams", **params).json["streams"]]


def test_streams_are_found_by_a_part_of_their_name_and_sorted_by_traffic(server: RunningServer) -> None:
    for stream, times in (("/shop/quiet", 1), ("/shop/Busy", 40), ("/other", 5), ("/shop/<b\"&'x", 10)):
        for _ in range(times):
            publish(server, stream)
    wait_until(lambda: sum(one.get("published", 0) for one in seconds(server)) == 56)

    assert listed(server, search="SHOP/", sort="traffic") == ["/shop/Busy", "/shop/<b\"&'x", "/shop/quiet"]
    assert listed(server, search="busy") == ["/shop/Busy"]
    assert listed(server, sort="traffic", limit=2) == ["/shop/Busy", "/shop/<b\"&'x"]
    assert set(listed(server, sort="traffic")) == set(listed(server))
    assert listed(server, pattern="/shop/*", sort="traffic")[0] == "/shop/Busy"
    assert ask(server, "GET", "/v1/streams", sort="size").status == 400
    assert ask(server, "GET", "/v1/streams", search="x" * 513).status == 400
    rates = {one["stream"]: one["rate"] for one in ask(server, "GET", "/v1/streams").json["streams"]}
    assert rates["/shop/Busy"] > rates["/other"] > 0 == rates["/"]


def test_a_search_goes_on_where_it_ended(shared_server: RunningServer) -> None:
    for number in range(6):
        publish(shared_server, f"/paged/{number}/match")
    first = ask(shared_server, "GET", "/v1/streams", search="MATCH", pattern="/paged/>", limit=4).json
    rest = ask(
        shared_server, "GET", "/v1/streams", search="match", pattern="/paged/>", limit=4, after=first["after"]
    ).json

    names = [one["stream"] for one in (*first["streams"], *rest["streams"])]
    assert names == [f"/paged/{number}/match" for number in range(6)]
    assert rest["after"] is None
