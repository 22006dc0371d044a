"""Several nodes: what they say to each other, who may say it, and what each of them serves."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.api.context import Context
from penstock.doors.webpush import WebPush
from penstock.http.timers import Wheel
from penstock.settings import Settings
from penstock.testing import RunningServer, start_server, wait_until_async
from penstock.wire.webpush import PushMessage, pass_on
from tests.api.client import ask
from tests.doors.user_agent import UserAgent
from tests.doors.webpush_place import NodePlace, Place, place

CHANNEL = "d9b74644-4f97-46aa-b8fa-9393985cd6cd"


async def token_of(made: Place) -> dict[str, str]:
    record = await made.engine.registry.get("webpush/keys")
    assert record is not None
    digest = hashlib.sha256(b"internal " + json.loads(record.value)[0].encode()).hexdigest()
    return {"Authorization": f"Bearer {digest}"}


def a_message(node: NodePlace, uaid: str) -> bytes:
    id = node.agents.tokens.message_id(uaid, node.place.clock.now_ms())
    return pass_on(PushMessage(uaid, CHANNEL, id, 600, node.place.clock.now_ms() + 600_000, b"x"), 0)


@pytest.mark.parametrize("over", ["bus", "http"])
async def test_a_notification_goes_from_the_endpoint_node_to_the_connection_node(tmp_path: Path, over: str) -> None:
    async with place(tmp_path, nodes=2, over=over) as made:
        endpoint_node, connection_node = made.nodes
        agent = await connection_node.agent()
        endpoint = await agent.register(CHANNEL)

        assert (await endpoint_node.send(endpoint, b"x")).status == 201

        first = await agent.notification()
        assert (await endpoint_node.send(endpoint, b"y")).status == 201  # it is busy: stored
        assert await made.stored(agent.uaid, endpoint_node.agents.month()) == [b"y"]
        await agent.ack(first)
        assert (await agent.notification())["data"] == "eQ"
        record = await made.record(agent.uaid)
        assert record is not None
        assert record.address == (connection_node.internal.url if over == "http" else "")


async def test_the_internal_listener_answers_as_autopush_does(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2, over="http") as made:
        node = made.nodes[0]
        agent = await node.agent()
        await agent.register(CHANNEL)
        token = await token_of(made)

        async def put(path: str, body: bytes = b"", method: str = "PUT") -> int:
            return (await node.ask(method, path, body, token, node.internal)).status

        assert await put(f"/push/{agent.uaid}", a_message(node, agent.uaid)) == 200
        assert await put(f"/push/{agent.uaid}", a_message(node, agent.uaid)) == 503
        assert await put(f"/notif/{agent.uaid}") == 202
        await agent.ack(await agent.notification())
        assert await put(f"/notif/{agent.uaid}") in (200, 202)
        assert await put(f"/push/{'f' * 32}", a_message(node, "f" * 32)) == 404
        assert await put(f"/notif/{'f' * 32}") == 404
        assert await put(f"/push/{agent.uaid}", b"garbage") == 400
        assert await put("/push/short", b"{}") == 400
        generation = node.agents.table[agent.uaid].state.connected_at
        assert await put(f"/notif/{agent.uaid}/{generation - 1}", method="DELETE") == 200
        assert agent.uaid in node.agents.table
        assert await put(f"/notif/{agent.uaid}/{generation}", method="DELETE") == 200
        assert await agent.closed() == 1011


async def test_who_has_not_the_token_of_the_cluster_is_turned_away(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2, over="http") as made:
        node = made.nodes[0]
        agent = await node.agent()
        await agent.register(CHANNEL)
        for method, path in (("PUT", f"/push/{agent.uaid}"), ("PUT", f"/notif/{agent.uaid}"),
                             ("DELETE", f"/notif/{agent.uaid}/1")):  # fmt: skip
            for token in ({}, {"Authorization": "Bearer admin"}):
                body = a_message(node, agent.uaid) if method == "PUT" else b""
                assert (await node.ask(method, path, body, token, node.internal)).status == 401
            assert (await node.ask(method, path, b"", await token_of(made))).status == 404  # not on the public port


async def test_the_storage_is_read_once_more_a_while_after_a_hello(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2) as made:
        endpoint_node, node = made.nodes
        agent = await node.agent()
        endpoint = await agent.register(CHANNEL)
        node.bus.cut = True  # the hint is lost
        assert (await endpoint_node.send(endpoint, b"x")).status == 201
        assert await agent.heard() == []

        made.time.advance(11)

        assert (await agent.notification())["data"] == "eA"


@pytest.mark.parametrize(("roles", "agents", "endpoint"), [("endpoint", 404, 404), ("connection", 426, 404)])
async def test_a_role_serves_its_own_paths_only(tmp_path: Path, roles: str, agents: int, endpoint: int) -> None:
    with start_server(tmp_path / "data", "--roles", roles) as server:
        assert ask(server, "GET", "/", token=None).status == agents
        reply = ask(server, "POST", "/wpush/v1/garbage", b"", token=None)
        assert reply.status == endpoint
        assert (b"errno" in reply.body) == (roles == "endpoint")


async def test_two_servers_with_one_role_each_work_as_one(tmp_path: Path) -> None:
    """Doors with one role each on one engine, as two processes have them on a cluster's."""
    async with place(tmp_path, nodes=2) as made:
        tables = []
        for node, role in zip(made.nodes, ("endpoint", "connection"), strict=True):
            settings = replace(Settings(), server=replace(Settings().server, roles=(role,)))
            context = Context(
                made.engine.log, made.engine.mailbox, made.engine.registry, node.bus, made.hub, made.ledger,
                made.authenticator, made.clock, Wheel(made.time), 1024,
            )  # type: ignore[arg-type]  # fmt: skip
            async with WebPush(context, settings, made.time.time) as door:
                tables.append({route.path for route in door.routes()})

        assert "/" not in tables[0]
        assert "/wpush/*/*" in tables[0]
        assert "/" in tables[1]
        assert "/wpush/*/*" not in tables[1]


def test_the_internal_listener_of_a_server_is_another_port_with_a_token_of_its_own(tmp_path: Path) -> None:
    chosen = {"server_internal_listen": "127.0.0.1:0", "server_internal_token": "shared"}
    with start_server(tmp_path / "data", **chosen) as server:
        port = int(server.log_text().partition("internal.listening url=http://127.0.0.1:")[2].split()[0])
        path = f"/notif/{'f' * 32}"

        def internally(path: str, token: str) -> int:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("PUT", path, headers={"Authorization": f"Bearer {token}"})
                return connection.getresponse().status

        assert ask(server, "PUT", path).status == 404
        assert internally(path, server.admin_token) == 401
        assert internally(path, "shared") == 404  # known here, and nobody of that name is
        assert internally("/v1/publish?stream=/a", "shared") == 404


@pytest.mark.parametrize("host", ["[::1", "a:b:c", "host:99999999", "", "a b"])
def test_a_strange_host_header_is_the_clients_mistake(shared_server: RunningServer, host: str) -> None:
    """Without webpush.origin the header decides how the service is called."""
    with UserAgent(shared_server) as agent:
        path = agent.subscribe()["endpoint"].removeprefix(shared_server.url)

    reply = ask(shared_server, "POST", path, b"", {"Host": host, "TTL": "0"}, token=None)

    assert reply.status in (201, 400)


async def test_the_keys_of_tokens_are_made_once_for_all_nodes(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=3) as made:
        agent = await made.nodes[2].agent()
        endpoint = await agent.register(CHANNEL)
        await wait_until_async(lambda: agent.uaid in made.nodes[2].agents.table)

        statuses = await asyncio.gather(*(node.send(endpoint, b"x") for node in made.nodes))

        assert [reply.status for reply in statuses] == [201, 201, 201]


@pytest.mark.parametrize(("direct", "lost"), [("bypass", 1), ("durable", 0)])
def test_kill_9_loses_the_window_at_most_and_nothing_where_that_is_wanted(
    tmp_path: Path, direct: str, lost: int
) -> None:
    with start_server(tmp_path / "data", webpush_direct=direct) as server:
        with UserAgent(server) as agent:
            path = agent.subscribe()["endpoint"].removeprefix(server.url)
            headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
            for body in (b"0", b"1", b"2"):  # the first is not acknowledged: the others are stored
                assert ask(server, "POST", path, body, headers, token=None).status == 201
            agent.notification()
            server.kill()
        server.restart()
        assert ask(server, "POST", path, b"3", headers, token=None).status == 201

        with UserAgent(server, agent.uaid) as again:
            assert again.uaid == agent.uaid
            heard = [again.notification()["data"] for _ in range(4 - lost)]

        assert heard == ["MA", "MQ", "Mg", "Mw"][lost:]


def test_why_answers_for_a_user_agent(server: RunningServer) -> None:
    def verdict(location: str, uaid: str) -> str:
        key = location.rpartition("/")[2]
        answer: str = ask(server, "GET", "/v1/why", entry=key, recipient=uaid).json["verdict"]
        return answer

    with UserAgent(server) as agent:
        path = agent.subscribe()["endpoint"].removeprefix(server.url)
        headers = {"TTL": "60", "Content-Encoding": "aes128gcm"}
        locations = [
            ask(server, "POST", path, body, headers, token=None).headers["location"] for body in (b"one", b"two")
        ]
        first = agent.notification()
        assert [verdict(location, agent.uaid) for location in locations] == ["sent", "stored"]
        agent.acknowledge(first)
        agent.notification()
        assert [verdict(location, agent.uaid) for location in locations] == ["acked", "sent"]
        ask(server, "DELETE", locations[1].removeprefix(server.url), token=None)

    assert verdict(locations[1], agent.uaid) == "dropped"
