"""Sessions of the message stream on a real cluster: any node serves them, and they outlive the one that did."""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedOK

from penstock.testing import RunningServer, start_nodes, wait_until
from tests.api.client import ask, publish
from tests.cluster.homes import new_prefix
from tests.doors.msgstream_client import LongPoll, actor_of, emit, emit_raw, login, open_socket, packs, receive


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


def test_a_session_outlives_its_node(engine: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = start_nodes(stack, tmp_path, engine, 2, log_prefix=new_prefix(), log_replicas=1)
        key = login(one, "survivor")
        with open_socket(one, key) as socket:
            emit(two, key, ["before"])
            assert receive(socket) == {"1": [["before"]]}
            one.kill()
        assert emit(two, key, ["after"]) == 2
        assert packs(two, key) == {"1": [["before"]], "2": [["after"]]}
        assert packs(two, key, confirm="1,2") == {}
        assert emit(two, key) == 3


TRIES = 1_000


@pytest.mark.long
@pytest.mark.limit(900)
def test_an_emit_that_meets_a_reconnect_is_not_lost(nodes: list[RunningServer]) -> None:
    """The client goes from node to node, and each time a third node emits while it does."""
    key = login(nodes[0], f"wanders-{uuid.uuid4().hex}")
    emitted: list[int] = []
    received: list[str] = []
    for number in range(TRIES):
        here, there = nodes[number % 3], nodes[(number + 2) % 3]
        emitting = threading.Thread(target=lambda node=there, n=number: emitted.append(emit(node, key, [f"m{n}"])))
        emitting.start()
        with open_socket(here, key) as socket:
            got = receive(socket)
            received += [message for pack in got.values() for (message,) in pack]
            emitting.join()
            socket.send(",".join(got))
            wait_until(lambda node=here: not packs_waiting(node, key))
    print(f"{len(received):,} packs received of {len(emitted):,} emitted")  # noqa: T201 - the count
    assert received == [f"m{number}" for number in range(TRIES)]
    assert emitted == list(range(1, TRIES + 1))


def packs_waiting(node: RunningServer, key: str) -> int:
    """How many packs of a session wait to be confirmed."""
    shown: int = ask(node, "GET", f"/v1/sessions/{actor_of(key)}").json["waiting"]
    return shown
