"""Doors over three real nodes: who connects here and who sends there need not know of each other."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from penstock.testing import RunningServer, wait_until
from tests.api.client import ask
from tests.cluster.homes import new_prefix
from tests.doors import trickle_client as trickle
from tests.doors.msgstream_client import emit, login, open_socket, packs, receive
from tests.doors.user_agent import UserAgent

Nodes = list[RunningServer]


def test_a_session_begun_on_one_node_is_polled_on_another_and_emitted_to_from_a_third(nodes: Nodes) -> None:
    key = login(nodes[0], new_prefix())
    first = emit(nodes[1], key, ["shop.purchase", {"item": "boots"}])
    second = emit(nodes[2], key, ["shop.purchase", {"item": "hat"}])

    assert (first, second) == (1, 2)
    wait_until(lambda: list(packs(nodes[1], key)) == ["1", "2"])
    assert list(packs(nodes[2], key, confirm="1")) == ["2"]
    assert list(packs(nodes[0], key)) == ["2"]


@pytest.mark.parametrize("tries", [1, pytest.param(2_000, marks=pytest.mark.long)])
def test_the_newest_connection_of_a_session_wins_over_nodes(nodes: Nodes, tries: int) -> None:
    for _ in range(tries):
        key = login(nodes[0], new_prefix())
        with open_socket(nodes[0], key) as old, open_socket(nodes[1], key) as new:
            emit(nodes[2], key, ["hello"])
            assert list(receive(new)) == ["1"]
            wait_until(lambda socket=old: _ended(socket))


def _ended(socket: ClientConnection) -> bool:
    try:
        socket.recv(0)
    except TimeoutError:
        return False
    except ConnectionClosed:
        return True
    return False


def test_a_message_to_an_endpoint_of_one_node_reaches_a_browser_at_another(nodes: Nodes) -> None:
    with UserAgent(nodes[0]) as agent:
        endpoint = agent.subscribe()["endpoint"]
        path = endpoint[endpoint.index("/wpush") :]
        answer = ask(nodes[1], "POST", path, b"", {"TTL": "60"}, token=None)

        assert answer.status == 201, answer
        assert agent.receive()["messageType"] == "notification"


def test_a_message_that_waits_is_given_to_the_browser_wherever_it_comes_back(nodes: Nodes) -> None:
    with UserAgent(nodes[0]) as agent:
        endpoint = agent.subscribe()["endpoint"]
    path = endpoint[endpoint.index("/wpush") :]
    assert ask(nodes[1], "POST", path, b"", {"TTL": "60"}, token=None).status == 201

    with UserAgent(nodes[2], uaid=agent.uaid) as again:
        assert again.uaid == agent.uaid
        assert again.receive()["messageType"] == "notification"


def test_a_channel_is_written_and_read_through_any_node(nodes: Nodes) -> None:
    channel = new_prefix()
    assert trickle.create(nodes[0], channel).status == 200
    for number, node in enumerate(nodes):
        assert trickle.post(node, channel, number, b"segment %d" % number).status == 200

    for node in nodes:
        assert [trickle.get(node, channel, number).body for number in range(3)] == [
            b"segment 0",
            b"segment 1",
            b"segment 2",
        ]
    assert trickle.delete(nodes[1], channel).status == 200
    assert trickle.get(nodes[2], channel, 0).status in (200, 404)
