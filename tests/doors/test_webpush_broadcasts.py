"""Broadcasts: put while the server runs, told at once to the user agents that asked, on every node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.api.context import Context
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.broadcasts import LOOK_SECONDS, Broadcasts
from penstock.limits import BROADCAST_ID_CHARACTERS, BROADCAST_VERSION_CHARACTERS, BROADCASTS
from penstock.settings import WebPushSettings
from penstock.testing import RunningServer
from penstock.testing import wait_until_async as wait_until
from tests.api.client import ask
from tests.doors import webpush_place
from tests.doors.test_webpush_sender import cli
from tests.doors.user_agent import UserAgent
from tests.doors.webpush_place import NodePlace, Reply, place

ADMIN = {"Authorization": "Bearer admin"}
PATH = "/v1/webpush/broadcasts"
NEVER = 3600.0  # seconds


async def put(node: NodePlace, id: str, version: object) -> Reply:
    return await node.ask("PUT", f"{PATH}/{id}", json.dumps({"version": version}).encode(), ADMIN)


async def versions(node: NodePlace) -> dict[str, str]:
    found: dict[str, str] = json.loads((await node.ask("GET", PATH, headers=ADMIN)).body)["broadcasts"]
    return found


class Incurious(Broadcasts):
    """The sabotage: hears hints, and never looks by itself."""

    async def start(self) -> None:
        await self.look()
        self._looking = self._context.background.every(NEVER, "webpush.broadcasts", self.look, wake=self._look)


class WithIncurious(Agents):
    def __init__(self, context: Context, settings: WebPushSettings, *more: Any, **named: Any) -> None:
        super().__init__(context, settings, *more, **named)
        self.broadcasts = Incurious(context, settings)


async def check_it_reaches_every_node(keys: Path, make: type[Agents], *, cut: bool) -> None:
    async with place(keys, nodes=2, make=make, broadcasts=("a/news=v1", "other=v1")) as made:
        agents = [await node.connect() for node in made.nodes]
        for agent in agents:
            await agent.hello(broadcasts={"a/news": "v1"})
        bystander = await made.nodes[1].connect()
        await bystander.hello(broadcasts={"other": "v1"})
        made.nodes[0].bus.cut = cut

        reply = await put(made.nodes[0], "a/news", "v2")

        assert (reply.status, json.loads(reply.body)) == (200, {"id": "a/news", "version": "v2"})
        for agent in agents:
            assert await agent.hear() == {"messageType": "broadcast", "broadcasts": {"a/news": "v2"}}
        for node in made.nodes:
            assert await versions(node) == {"a/news": "v2", "other": "v1"}
        await bystander.ping_pong()  # and nothing came


@pytest.mark.parametrize(("make", "cut"), [(Agents, False), (Agents, True), (WithIncurious, False)])
async def test_a_new_version_reaches_who_asked_on_every_node(tmp_path: Path, make: type[Agents], cut: bool) -> None:
    """With the bus cut off the hint is lost: then it takes up to a second."""
    await check_it_reaches_every_node(tmp_path, make, cut=cut)


async def test_a_node_that_never_looks_by_itself_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs the hint, which is lost."""
    monkeypatch.setattr(webpush_place, "WITHIN", 2 * LOOK_SECONDS)  # twice what an honest node needs

    with pytest.raises(TimeoutError):
        await check_it_reaches_every_node(tmp_path, WithIncurious, cut=True)


async def test_a_version_is_told_once_and_one_that_is_known_not_at_all(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]
        agent = await node.agent()
        await put(node, "news", "v1")
        await agent.say(messageType="broadcast_subscribe", broadcasts={"news": "v1", "later": "v0"})
        await put(node, "news", "v1")
        await put(node, "later", "v1")
        await put(node, "news", "v2")
        await put(node, "news", "v3")

        heard = [await agent.hear() for _ in range(3)]
        await agent.ping_pong()

        assert [one["broadcasts"] for one in heard] == [
            {"errors": {"later": "Broadcast not found"}}, {"news": "v2"}, {"news": "v3"},
        ]  # fmt: skip


async def test_what_was_put_is_kept_and_taken_back_the_setting_counts_again(tmp_path: Path) -> None:
    async with place(tmp_path, nodes=2, broadcasts=("news=v1",)) as made:
        node, other = made.nodes
        await put(node, "news", "v2")
        await put(node, "more", "v1")
        await wait_until(lambda: other.agents.broadcasts.versions == {"news": "v2", "more": "v1"})
        agent = await other.connect()
        assert (await agent.hello(broadcasts={"news": "v1"}))["broadcasts"] == {"news": "v2"}

        gone = [await other.ask("DELETE", f"{PATH}/{id}", headers=ADMIN) for id in ("news", "more", "more", "nothing")]

        assert [reply.status for reply in gone] == [204, 204, 404, 404]
        assert await versions(other) == {"news": "v1"}
        assert (await agent.hear())["broadcasts"] == {"news": "v1"}


@pytest.mark.parametrize(
    ("id", "version", "status"),
    [
        ("x" * (BROADCAST_ID_CHARACTERS + 1), "v1", 400),
        ("errors", "v1", 400),
        ("with%20space", "v1", 400),
        ("%C3%A9", "v1", 400),
        ("", "v1", 400),
        ("news", "", 400),
        ("news", "v" * (BROADCAST_VERSION_CHARACTERS + 1), 400),
        ("news", "\n", 400),
        ("news", 7, 400),
        ("news", [[[]]], 400),
    ],
)
async def test_what_cannot_be_a_broadcast_is_refused(tmp_path: Path, id: str, version: object, status: int) -> None:
    async with place(tmp_path) as made:
        reply = await put(made.nodes[0], id, version)

        assert reply.status == status, reply
        assert await versions(made.nodes[0]) == {}


async def test_their_number_is_bounded_and_those_there_are_can_still_change(tmp_path: Path) -> None:
    async with place(tmp_path, broadcasts=("first=v1",)) as made:
        node = made.nodes[0]
        statuses = [(await put(node, f"b{number}", "v1")).status for number in range(BROADCASTS)]

        assert statuses == [200] * (BROADCASTS - 1) + [413]
        assert (await put(node, "b0", "v2")).status == 200


async def test_a_stranger_puts_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as made:
        node = made.nodes[0]

        for method, path in (("PUT", f"{PATH}/x"), ("DELETE", f"{PATH}/x"), ("GET", PATH)):
            assert (await node.ask(method, path, b'{"version":"v1"}' if method == "PUT" else b"")).status == 401


def test_the_command_line_puts_one(shared_server: RunningServer) -> None:
    with UserAgent(shared_server) as agent:
        ask(shared_server, "PUT", f"{PATH}/cli/one", b'{"version":"v1"}')
        agent.send({"messageType": "broadcast_subscribe", "broadcasts": {"cli/one": "v1"}})
        said = cli(shared_server, "broadcast", "cli/one", "v2")

        assert (said.returncode, said.stdout) == (0, "cli/one is at v2\n"), said.stderr
        assert agent.receive() == {"messageType": "broadcast", "broadcasts": {"cli/one": "v2"}}
    assert ask(shared_server, "DELETE", f"{PATH}/cli/one").status == 204
