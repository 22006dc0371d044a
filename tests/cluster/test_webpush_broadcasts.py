"""A broadcast over two real nodes: put at one, told to the user agents of both."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from penstock.testing import start_nodes
from tests.api.client import ask
from tests.cluster.homes import new_prefix
from tests.doors.user_agent import UserAgent

PATH = "/v1/webpush/broadcasts"


def test_a_new_version_reaches_the_user_agents_of_every_node(engine: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        chosen = {"webpush_origin": "http://push.test", "webpush_broadcasts": "news=v0"}
        nodes = start_nodes(stack, tmp_path, engine, 2, log_prefix=new_prefix(), log_replicas=1, **chosen)
        agents = [stack.enter_context(UserAgent(node)) for node in nodes]
        bystander = stack.enter_context(UserAgent(nodes[1]))
        for agent in agents:
            agent.send({"messageType": "broadcast_subscribe", "broadcasts": {"news": "v0"}})
            agent.subscribe()  # when this is answered, what was said before it was carried out
        for node, version in zip(nodes, ("v1", "v2"), strict=True):
            put = ask(node, "PUT", f"{PATH}/news", json.dumps({"version": version}).encode())
            assert put.status == 200, put.body
            for agent in agents:
                assert agent.receive() == {"messageType": "broadcast", "broadcasts": {"news": version}}
        for node in nodes:
            assert ask(node, "GET", PATH).json["broadcasts"] == {"news": "v2"}
        bystander.subscribe()  # the next that it hears is the answer: nothing came before
