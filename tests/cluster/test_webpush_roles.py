"""Endpoint nodes and connection nodes in processes of their own, on a real NATS server and as workers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, ask
from tests.cluster.homes import new_prefix
from tests.doors.user_agent import UserAgent, connected

CODING = {"TTL": "600", "Content-Encoding": "aes128gcm"}


def send(node: RunningServer, endpoint: str, body: bytes) -> Reply:
    return ask(node, "POST", urlsplit(endpoint).path, body, CODING, token=None)


def test_endpoint_and_connection_nodes_run_apart_and_a_dead_one_loses_nothing_stored(
    engine: str, tmp_path: Path
) -> None:
    prefix = new_prefix()
    with ExitStack() as stack:

        def start(name: str, role: str, **settings: object) -> RunningServer:
            arguments = ("--engine", engine, "--roles", role, "--set", f"log.prefix={prefix}")
            chosen = {"server_node": name, "log_replicas": 1, "webpush_origin": "http://push.test", **settings}
            return stack.enter_context(start_server(tmp_path / name, *arguments, **chosen))

        endpoint_node = start("endpoint", "endpoint")
        over_bus, over_http = (
            start("bus", "connection"),
            start("http", "connection", server_internal_listen="127.0.0.1:0"),
        )
        assert ask(endpoint_node, "GET", "/", token=None).status == 404
        assert send(over_bus, "/wpush/v1/x", b"").status == 404

        for node in (over_bus, over_http):
            with UserAgent(node) as agent:
                endpoint = agent.subscribe()["endpoint"]
                # Given a user agent that is connected: a message goes straight to it
                assert send(endpoint_node, endpoint, b"direct").status == 201
                first = agent.notification()
                # and one that comes before the ack is stored, and follows the ack
                assert send(endpoint_node, endpoint, b"stored").status == 201
                agent.acknowledge(first)
                second = agent.notification()
                agent.acknowledge(second)
                assert [one["data"] for one in (first, second)] == ["ZGlyZWN0", "c3RvcmVk"]
            wait_until(lambda node=node: not connected(node))

        # When the node of a user agent dies
        with UserAgent(over_bus) as agent:
            endpoint = agent.subscribe()["endpoint"]
            over_bus.kill()
        assert send(endpoint_node, endpoint, b"meanwhile").status == 201
        # Then the message waits at whichever node it comes back to
        with UserAgent(over_http, agent.uaid) as back:
            assert back.uaid == agent.uaid
            assert back.notification()["data"] == "bWVhbndoaWxl"
