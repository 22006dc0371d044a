"""The sender on several nodes: each binding is sent for by one of them, and by another when that one dies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from penstock.testing import NatsCluster, RunningServer, start_nodes, wait_until
from tests.api.client import ask, publish
from tests.api.test_v1_recipients import act
from tests.api.test_v1_trouble import redrive, states
from tests.cluster.homes import new_prefix
from tests.doors.push_service import Browser, bind, push_service


def runs_here(node: RunningServer) -> int:
    metrics = ask(node, "GET", "/metrics").body.decode()
    return int(float(metrics.split("\npenstock_webpush_bindings ")[1].split("\n")[0]))


def test_each_binding_is_sent_for_by_one_node_and_by_another_when_that_one_dies(
    nats_three: NatsCluster, tmp_path: Path
) -> None:
    browser = Browser()
    with ExitStack() as stack, push_service() as service:
        nodes = start_nodes(stack, tmp_path, nats_three.url, log_prefix=new_prefix())

        def received() -> list[bytes]:
            return [browser.read(push.body) for push in service.taken]

        # Given a binding that was made on one node
        id = bind(nodes[0], browser.subscription(service.endpoint("a")), "/orders")
        wait_until(lambda: sum(runs_here(node) for node in nodes) == 1)
        # When events come on all of them
        for number in range(6):
            assert publish(nodes[number % 3], "/orders", b"%d" % number).status == 201
        # Then each is sent once, and every node knows the binding and how far it is
        wait_until(lambda: received() == [b"%d" % number for number in range(6)])
        last = ask(nodes[0], "GET", "/v1/read", stream="/orders", **{"from": 5}).json["entries"][0]["id"]
        for node in nodes:
            wait_until(lambda node=node: ask(node, "GET", f"/v1/webpush/{id}").json["position"] == last)
        keys = {ask(node, "GET", "/v1/webpush/key", token=None).json["public_key"] for node in nodes}
        assert len(keys) == 1
        # When the one that sends dies
        sending = next(node for node in nodes if runs_here(node))
        living = [node for node in nodes if node is not sending]
        sending.kill()
        assert publish(living[0], "/orders", b"after").status == 201
        # Then another goes on where it was
        wait_until(lambda: received()[-1] == b"after")
        assert received() == [*(b"%d" % number for number in range(6)), b"after"]
        # And what is unbound on a node that does not send is sent no more
        other = next(node for node in living if not runs_here(node))
        assert ask(other, "DELETE", f"/v1/webpush/{id}").status == 204
        wait_until(lambda: sum(runs_here(node) for node in living) == 0)
        assert [ask(node, "GET", f"/v1/webpush/{id}").status for node in living] == [404, 404]


def sends(node: RunningServer, id: str) -> bool:
    shown = ask(node, "GET", f"/v1/webpush/{id}")
    return shown.status == 200 and shown.json["state"] != "elsewhere"


def test_a_binding_is_tried_again_by_whichever_node_is_asked(nodes: list[RunningServer]) -> None:
    # Given a binding whose push service asks to be left alone for ten minutes
    answer: list[tuple[int, dict[str, str]]] = [(503, {"Retry-After": "600"})]
    with push_service(lambda push: answer[0]) as service:
        id = bind(nodes[0], Browser().subscription(service.endpoint("again")), "/again", ttl=1200)
        wait_until(lambda: sum(sends(node, id) for node in nodes) == 1, within=20)
        other, another = (node for node in nodes if not sends(node, id))
        publish(other, "/again", b"1")
        wait_until(lambda: states(other, id) == ["retried"], within=20)
        # Then what waits is tried at once when a node is told to that does not send for it
        answer[0] = 400, {}
        assert act(other, "binding", id, "retry").status == 200
        wait_until(lambda: states(another, id) == ["dropped"], within=20)
        # And what was given up is sent once more
        answer[0] = 201, {}
        assert redrive(another, recipient=id).json["redriven"] == 1
        wait_until(lambda: len(service.taken) == 1, within=20)
        wait_until(lambda: states(other, id) == [], within=20)
        assert not sends(other, id)
        assert ask(other, "DELETE", f"/v1/webpush/{id}").status == 204
