"""Three real nodes on three real NATS servers: what is published on one is read on all, and nodes may die."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from penstock.limits import TYPED_TABLES
from penstock.testing import NatsCluster, RunningServer, TooLate, start_nodes, wait_until
from tests.api.client import Tail, ask, declare_at_once, publish
from tests.cluster.homes import new_prefix
from tests.doors.eventhorizon_client import Model, add_pusher, append, create, pusher, scripted, subscribe
from tests.doors.sps_client import Wire, new_user, notify, notify_id

Nodes = list[RunningServer]
PACE_SECONDS = 0.02  # of a publisher: the load is steady, and leaves the machine time to start nodes


def bodies(node: RunningServer, stream: str) -> list[str]:
    """Everything in a stream, as this node sees it."""
    found: list[str] = []
    while True:
        answer = ask(node, "GET", "/v1/read", stream=stream, **{"from": len(found)})
        if answer.status == 404:
            return found
        entries = answer.json["entries"]
        if not entries:
            return found
        found += [entry["data"] for entry in entries]


def test_what_is_published_on_one_node_is_read_on_all(nodes: Nodes) -> None:
    stream = f"/all/{new_prefix()}"
    with Tail(nodes[0], stream) as first, Tail(nodes[2], stream) as third:
        for number, node in zip(range(9), cycle(nodes)):
            assert publish(node, stream, b"%d" % number).status == 201
        expected = [str(number) for number in range(9)]

        assert [line["data"] for line in first.lines(9)] == expected
        assert [line["data"] for line in third.lines(9)] == expected
    for node in nodes:
        wait_until(lambda node=node: bodies(node, stream) == expected)


def test_a_limit_of_typed_tables_is_kept_over_all_nodes(nodes: Nodes) -> None:
    names = [f"limit_{number}" for number in range(TYPED_TABLES + 5)]
    try:
        for number, name in enumerate(names[:-6]):
            assert declare_at_once([nodes[number % 3]], [name]) == {201: 1}

        assert declare_at_once(nodes, names[-6:]) == {201: 1, 413: 5}

        assert [len(ask(node, "GET", "/v1/lake/tables").json["tables"]) for node in nodes] == [TYPED_TABLES] * 3
    finally:
        for name in names:
            ask(nodes[0], "DELETE", f"/v1/lake/tables/{name}")


def test_a_key_that_was_used_on_one_node_is_known_on_all(nodes: Nodes) -> None:
    stream = f"/keys/{new_prefix()}"
    answers = [publish(node, stream, b"once", Idempotency_Key="k") for node in nodes]

    assert [answer.status for answer in answers] == [201, 201, 201]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert publish(nodes[1], stream, b"another", Idempotency_Key="k").status == 409


def test_a_device_that_comes_to_another_node_is_replaced_on_the_first(nodes: Nodes) -> None:
    with Wire(nodes[0], hid="phone").opened() as old:
        wait_until(lambda: ask(nodes[1], "GET", "/online", uid=old.uid).json["online"])
        with Wire(nodes[1], uid=old.uid, hid="phone").opened() as new:
            assert [line["event"] for line in old.rest()] == ["replaced"]
            notify_id(nodes[2], "user", b"hello", uid=new.uid)
            assert new.line()["data"] == "hello"
            shown = ask(nodes[2], "GET", "/online", uid=new.uid).json
            assert [device["hid"] for device in shown["devices"]] == ["phone"]


def test_a_room_is_counted_over_all_nodes(nodes: Nodes) -> None:
    room = new_prefix()
    with Wire(nodes[0], tid=room).opened(), Wire(nodes[1], tid=room).opened(), Wire(nodes[1], tid=room).opened():
        for node in nodes:
            assert ask(node, "GET", "/rooms", tid=f"{room},nobody").json == {"rooms": {room: 3, "nobody": 0}}


@pytest.mark.parametrize("nodes", ["workers"], indirect=True)
def test_delivered_counts_the_wires_of_the_whole_machine(nodes: Nodes) -> None:
    room = new_prefix()
    with Wire(nodes[0], tid=room).opened() as one, Wire(nodes[1], hid="phone", tid=room).opened() as two:
        wait_until(lambda: notify(nodes[2], "room", b"x", tid=room).json["delivered"] == 2)  # the others know of both
        for node in nodes:
            assert notify(node, "room", b"x", tid=f"{room},nobody").json["delivered"] == 2
            assert notify(node, "user", b"x", uid=two.uid, hid="phone").json["delivered"] == 1
            assert notify(node, "user", b"x", uid=two.uid, hid="tablet").json["delivered"] == 0
            plain = notify(node, "user", b"x", {"Accept": "text/plain"}, uid=one.uid).body
            assert plain.startswith(b"delivered\n")


def test_any_node_lists_a_pusher_and_tells_the_one_that_runs_it_to_try_again(nodes: Nodes) -> None:
    name = new_prefix()
    with scripted(lambda request: (500, "broken")) as app:
        id = add_pusher(nodes[0], app.url)
        try:
            for node in nodes:
                wait_until(lambda node=node: _view(node, id)["state"] == "failing")
            assert len([node for node in nodes if _view(node, id)["node"]]) == 2  # the third runs it itself
            assert [_act(node, id, "retry") for node in nodes] == [200, 200, 200]
            assert [_act(nodes[0], name, "retry"), _act(nodes[1], id, "resume")] == [404, 409]
            assert _act(nodes[1], id, "pause") == 200
            assert [_view(node, id)["state"] for node in nodes] == ["paused"] * 3
            assert [_act(node, id, "retry") for node in nodes] == [409, 409, 409]
        finally:
            ask(nodes[0], "DELETE", f"/v1/pushers/{id}")


def test_any_node_lists_pushers_in_pages_wherever_they_run(nodes: Nodes) -> None:
    with scripted(lambda request: (500, "broken")) as app:
        ids = sorted(add_pusher(nodes[0], app.url) for _ in range(5))
        after = ids[0][:-1]
        try:
            for node in nodes:
                wait_until(lambda node=node: _states(node, after, 4) == dict.fromkeys(ids[:4], "failing"))
                wait_until(lambda node=node: _states(node, ids[3], 1) == {ids[4]: "failing"})
        finally:
            for id in ids:
                ask(nodes[0], "DELETE", f"/v1/pushers/{id}")


def _states(node: RunningServer, after: str, limit: int) -> dict[str, str]:
    shown = ask(node, "GET", "/v1/pushers", after=after, limit=limit).json["pushers"]
    assert all(one["node"] for one in shown if one["state"] == "failing")
    return {one["id"]: one["state"] for one in shown}


def _view(node: RunningServer, id: str) -> dict[str, Any]:
    reply = ask(node, "GET", "/v1/recipients/waiting", kind="pusher", name=id)
    view: dict[str, Any] = reply.json["recipient"] if reply.status == 200 else {"state": "", "node": ""}
    return view


def _act(node: RunningServer, id: str, action: str) -> int:
    body = json.dumps({"kind": "pusher", "name": id, "action": action}).encode()
    return ask(node, "POST", "/v1/recipients/act", body).status


def test_each_pusher_is_run_by_one_node_and_any_node_answers_for_it(nodes: Nodes) -> None:
    name = new_prefix()
    create(nodes[0], f"/{name}")
    wait_until(lambda: ask(nodes[1], "GET", "/v1/read", stream=f"/{name}").status == 200)
    create(nodes[0], f"/_sub/{name}")
    wait_until(lambda: ask(nodes[1], "GET", "/v1/read", stream=f"/_sub/{name}").status == 200)
    subscribe(nodes[1], f"/{name}", f"/_sub/{name}")
    with scripted(Model(f"/_sub/{name}")) as app:
        id = add_pusher(nodes[2], app.url)
        append(nodes[0], f"/{name}", "one", "two")

        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["one", "two"])
        assert _running(nodes) == 1
        for node in nodes:
            wait_until(lambda node=node: pusher(node, id)["state"] == "pushing")
        assert len({pusher(node, id)["node"] for node in nodes} - {""}) == 1
        assert ask(nodes[0], "POST", f"/v1/pushers/{id}/pause").json["state"] == "paused"
        assert _running(nodes) == 0
        append(nodes[1], f"/{name}", "three")
        assert ask(nodes[1], "POST", f"/v1/pushers/{id}/resume").status == 200
        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["one", "two", "three"])
        assert ask(nodes[2], "DELETE", f"/v1/pushers/{id}").status == 204
        assert [ask(node, "GET", f"/v1/pushers/{id}").status for node in nodes] == [404, 404, 404]


def _running(nodes: Nodes) -> int:
    """How many pushers run on these nodes. Any worker of a machine tells it of all of them."""
    return _counted(nodes[0]) if _is_worker(nodes[0]) else sum(map(_counted, nodes))


def _runner(nodes: Nodes, id: str) -> RunningServer:
    """The node that runs a pusher."""

    def runs(node: RunningServer) -> bool:
        return bool(pusher(node, id)["node"] == node.data.name if _is_worker(node) else _counted(node))

    return next(node for node in nodes if runs(node))


def _is_worker(node: RunningServer) -> bool:
    return node.arguments[1].startswith("unix:")


def _counted(node: RunningServer) -> int:
    metrics = ask(node, "GET", "/metrics").body.decode()
    return int(float(metrics.split("\npenstock_pushers ")[1].split("\n")[0]))


def test_a_client_of_a_killed_node_goes_on_at_another(nodes: Nodes) -> None:
    uid, sent = new_user(), []
    first, second, third = nodes
    with Wire(first, uid=uid, hid="phone").opened() as wire:
        sent += [notify_id(second, "user", b"%d" % number, uid=uid) for number in range(5)]
        got = [line["id"] for line in wire.lines(3)]
        first.kill()
    sent += [notify_id(third, "user", b"%d" % number, uid=uid) for number in range(5, 10)]
    with Wire(second, uid=uid, hid="phone", o=got[-1]).opened() as wire:
        got += [line["id"] for line in wire.lines(7)]
    first.restart()

    assert got == sent


def test_the_pusher_of_a_killed_node_goes_on_at_another(nodes: Nodes) -> None:
    name = new_prefix()
    create(nodes[0], f"/{name}")
    wait_until(lambda: ask(nodes[1], "GET", "/v1/read", stream=f"/{name}").status == 200)
    create(nodes[0], f"/_sub/{name}")
    wait_until(lambda: ask(nodes[1], "GET", "/v1/read", stream=f"/_sub/{name}").status == 200)
    subscribe(nodes[1], f"/{name}", f"/_sub/{name}")
    with scripted(Model(f"/_sub/{name}")) as app:
        id = add_pusher(nodes[0], app.url)
        append(nodes[0], f"/{name}", "before")
        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["before"])
        running = _runner(nodes, id)
        living = [node for node in nodes if node is not running]
        running.kill()
        append(living[0], f"/{name}", "after")

        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["before", "after"])
        assert _running(living) == 1
        ask(living[0], "DELETE", f"/v1/pushers/{id}")
    running.restart()


def test_a_node_that_was_stopped_in_the_middle_pushes_no_more(nodes: Nodes) -> None:
    """It looks alive, and its pusher is somewhere in its dialogue: another node takes over, and nothing comes twice."""
    name = new_prefix()
    create(nodes[0], f"/{name}", f"/_sub/{name}")
    for node in nodes:
        wait_until(lambda node=node: ask(node, "GET", "/v1/read", stream=f"/_sub/{name}").status == 200)
    subscribe(nodes[1], f"/{name}", f"/_sub/{name}")
    with scripted(Model(f"/_sub/{name}")) as app:
        id = add_pusher(nodes[0], app.url)
        append(nodes[0], f"/{name}", "before")
        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["before"])
        stopped = _runner(nodes, id)
        living = [node for node in nodes if node is not stopped]
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            append(living[0], f"/{name}", "meanwhile")
            wait_until(lambda: app.decide.applied.get(f"/{name}") == ["before", "meanwhile"])
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        if _is_worker(stopped):  # the log process has ended a worker that was silent for so long
            assert stopped.process.wait(60) == -signal.SIGKILL
            stopped.restart()
        wait_until(lambda: ask(stopped, "GET", "/ready", token=None).status == 200)
        append(stopped, f"/{name}", "after")

        wait_until(lambda: app.decide.applied.get(f"/{name}") == ["before", "meanwhile", "after"])
        wait_until(lambda: _running(nodes) == 1)
        ask(living[0], "DELETE", f"/v1/pushers/{id}")


class Publisher(threading.Thread):
    """Publishes numbers, each under a key, and tries again elsewhere until each was acknowledged."""

    def __init__(self, nodes: Nodes, stream: str) -> None:
        super().__init__(daemon=True)
        self._nodes, self.stream = nodes, stream
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        for number in count():
            if self.ending.wait(PACE_SECONDS):
                return
            self._publish(str(number))

    def _publish(self, number: str) -> None:
        for node in cycle(self._nodes):
            try:
                answer = publish(node, self.stream, number.encode(), Idempotency_Key=f"{self.stream} {number}")
            except (OSError, http.client.HTTPException):
                continue  # it is being restarted
            if answer.status == 503:
                continue
            if answer.status != 201:
                self.failed.append(f"{answer.status} {answer.body!r}")
            self.acknowledged.append(number)
            return


def check_all_there(nodes: Nodes, publishers: list[Publisher], within: float = 30) -> None:
    """What was acknowledged is there once, in order, on every node."""
    for one in publishers:
        assert one.failed == []
        for node in nodes:
            wait_until(lambda node=node, one=one: bodies(node, one.stream) == one.acknowledged, within=within)


@pytest.mark.parametrize("planted", ["loss", "double", "reorder"])
def test_the_check_finds_what_is_planted(nodes: Nodes, planted: str) -> None:
    publisher = Publisher(nodes, f"/planted/{new_prefix()}")
    for number in "012":
        publisher._publish(number)
    check_all_there(nodes, [publisher])
    if planted == "loss":
        publisher.acknowledged.append("3")
    elif planted == "double":
        publish(nodes[0], publisher.stream, b"2")  # as somebody tries again who uses no key
    else:
        publisher.acknowledged.reverse()

    with pytest.raises(TooLate):
        check_all_there(nodes, [publisher], within=0.5)


def test_a_rolling_restart_loses_no_publish(nodes: Nodes) -> None:
    publishers = [Publisher(nodes[n:] + nodes[:n], f"/rolling/{new_prefix()}") for n in range(3)]
    for one in publishers:
        one.start()
    for node in nodes:
        before = [len(one.acknowledged) for one in publishers]
        node.restart()
        wait_until(
            lambda before=before: all(len(p.acknowledged) > b for p, b in zip(publishers, before, strict=True)),
        )
    for one in publishers:
        one.ending.set()
        one.join(30)

    check_all_there(nodes, publishers)


@pytest.mark.long
def test_a_rolling_restart_of_the_nats_servers_loses_no_publish(nats_own: NatsCluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = start_nodes(stack, tmp_path, nats_own.url, count=2, log_prefix=new_prefix())
        publishers = [Publisher(nodes[n:] + nodes[:n], f"/rolling/{n}") for n in range(2)]
        for one in publishers:
            one.start()
        for server in nats_own.servers:
            server.stop()
            server.restart()
            nats_own.wait_until_ready()
            before = [len(one.acknowledged) for one in publishers]
            wait_until(
                lambda before=before: all(
                    len(one.acknowledged) > count for one, count in zip(publishers, before, strict=True)
                ),
                within=60,
            )
        for one in publishers:
            one.ending.set()
            one.join(60)
        check_all_there(nodes, publishers)


def test_the_pipelines_export_is_the_same_from_any_node(nodes: Nodes) -> None:
    stream = f"/export/{new_prefix()}"
    publish(nodes[0], stream, b"one")
    plans = []
    for node in nodes:
        wait_until(lambda node=node: bodies(node, stream) == ["one"])
        plans.append(json.loads(ask(node, "GET", "/v1/log/plan").body))

    assert all(plan.keys() == plans[0].keys() for plan in plans)
