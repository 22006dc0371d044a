"""Sessions of the message stream on a real cluster: any node serves them, and they outlive the one that did."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedOK

from penstock.cli.cluster import start_nodes
from penstock.testing import NatsCluster, RunningServer, wait_until
from tests.api.client import publish
from tests.cluster.homes import new_prefix
from tests.doors.msgstream_client import LongPoll, emit, emit_raw, login, open_socket, packs, receive


def test_any_node_serves_a_session(nodes: list[RunningServer]) -> None:
    one, two, three = nodes
    stream = f"/followed/{uuid.uuid4().hex}"
    key = login(one, f"Jörg {uuid.uuid4().hex}/x", follow=[stream])
    assert emit(two, key, ["m1"]) == 1
    assert packs(three, key) == {"1": [["m1"]]}
    publish(one, stream, b'{"n":2}')
    wait_until(lambda: packs(two, key, confirm="1").keys() == {"2"})
    held = LongPoll(three, key, confirm="2")
    emit(one, key, ["m3"])
    assert held.answer().json == {"3": [["m3"]]}
    assert packs(one, key, confirm="3") == {}


def test_the_newest_connection_wins_wherever_it_is(nodes: list[RunningServer]) -> None:
    one, two, three = nodes
    key = login(one, f"moves-{uuid.uuid4().hex}")
    with open_socket(one, key) as first:
        emit(three, key, ["here"])
        assert receive(first) == {"1": [["here"]]}
        with open_socket(two, key) as second:
            assert receive(second) == {"1": [["here"]]}
            with pytest.raises(ConnectionClosedOK):
                first.recv(20)
            emit_raw(three, {"broadcast": True, "messages": [["all"]]})
            assert receive(second) == {"2": [["all"]]}


def test_a_session_outlives_its_node(nats_alone: NatsCluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = start_nodes(stack, tmp_path, nats_alone.url, 2, log_prefix=new_prefix(), log_replicas=1)
        key = login(one, "survivor")
        with open_socket(one, key) as socket:
            emit(two, key, ["before"])
            assert receive(socket) == {"1": [["before"]]}
            one.kill()
        assert emit(two, key, ["after"]) == 2
        assert packs(two, key) == {"1": [["before"]], "2": [["after"]]}
        assert packs(two, key, confirm="1,2") == {}
        assert emit(two, key) == 3
