"""The list of recipients, and what can be done about them: the same at each node of a cluster and worker."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.api.recipients import RecipientView
from penstock.api.v1.all_recipients import cut
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Tail, ask, publish
from tests.api.test_v1_recipients import act, listed, one, state, waiting
from tests.cluster.homes import new_prefix
from tests.doors import msgstream_client, trickle_client
from tests.doors.sps_client import Wire, new_user
from tests.doors.user_agent import UserAgent

Nodes = list[RunningServer]


def _place(view: dict[str, Any]) -> tuple[str, str, str]:
    return view["kind"], view["name"], view["node"]


def test_every_node_lists_the_connections_of_all(nodes: Nodes) -> None:
    name = new_prefix()
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(node, tid=name, hid=name).opened()) for node in nodes]
        for node in (nodes[1], nodes[1], nodes[2]):
            stack.enter_context(Tail(node, f"/{name}", consumer=name))
        stack.enter_context(Tail(nodes[0], "/x", consumer=f"innocent-of-{name}"))
        channel = trickle_client.made(nodes[2], name)
        for node in nodes:
            wait_until(lambda node=node: listed(node, search=name)["found"] == 7)  # it knows of the others by then
            shown = listed(node, search=name, sort="name", limit=100)
            rows = [(view["kind"], view["name"], view["connections"]) for view in shown["recipients"]]
            assert sorted(rows) == [
                ("channel", channel, 0),
                ("tail", f"innocent-of-{name}", 1),
                ("tail", name, 1),
                ("tail", name, 2),  # each node has a row
                *sorted(("wire", f"{wire.uid}/{name}", 1) for wire in wires),
            ]
            assert (shown["found"], shown["complete"], shown["silent"]) == (7, True, 0)
            assert len([view for view in shown["recipients"] if view["kind"] == "wire" and not view["node"]]) == 1
            assert len({view["node"] for view in shown["recipients"] if view["kind"] == "wire"}) == 3
            # Pages of all are cut as those of one are
            pages = [listed(node, search=name, limit=2, **{"from": begin})["recipients"] for begin in (0, 2, 4, 6, 8)]
            assert [_place(view) for page in pages for view in page] == [_place(view) for view in shown["recipients"]]
            assert listed(node, kind="wire", search=name)["found"] == 3
            for wire in wires:
                wait_until(lambda node=node, wire=wire: state(node, "wire", f"{wire.uid}/{name}") == "live")
                assert waiting(node, "wire", f"{wire.uid}/{name}")["items"] == []


def test_whoever_is_connected_to_another_node_is_disconnected_and_nobody_else(nodes: Nodes) -> None:
    name, (first, second, third) = new_prefix(), nodes
    key = msgstream_client.login(second)
    with ExitStack() as stack:
        wire = stack.enter_context(Wire(second, hid="phone").opened())
        other = stack.enter_context(Wire(second, uid=wire.uid, hid="tv").opened())
        tails = [stack.enter_context(Tail(node, f"/{name}", consumer=name)) for node in nodes]
        innocent = stack.enter_context(Tail(second, f"/{name}", consumer=f"not-{name}"))
        channel = trickle_client.made(second, name)
        agent = stack.enter_context(UserAgent(second))
        agent.subscribe()
        stack.enter_context(msgstream_client.open_socket(second, key))
        actor = msgstream_client.actor_of(key)
        wait_until(lambda: one(first, "session", actor) and one(first, "session", actor)["actions"])  # type: ignore[index]
        wait_until(lambda: one(first, "agent", agent.uaid) and one(first, "agent", agent.uaid)["actions"])  # type: ignore[index]
        # Given who is connected to the second or to all, when the first is told to disconnect
        assert act(first, "wire", f"{wire.uid}/tv", "pause").status == 409
        for kind, whom in (("wire", f"{wire.uid}/phone"), ("tail", name), ("channel", channel)):
            done = act(first, kind, whom, "disconnect")
            assert (done.status, done.json["recipient"], done.json["silent"]) == (200, None, 0)
            assert {act(node, kind, whom, "disconnect").status for node in nodes} == {404}
        assert act(first, "session", actor, "disconnect").status == 200
        assert act(first, "agent", agent.uaid, "disconnect").status == 200
        # Then they are, wherever they were
        assert wire.rest() == []
        assert [tail.response.read() for tail in tails] == [b"", b"", b""]
        wait_until(lambda: {state(node, "session", actor) for node in nodes} == {"away"})
        wait_until(lambda: not any(one(node, "agent", agent.uaid)["actions"] for node in nodes))  # type: ignore[index]
        # And nobody else is
        publish(third, f"/{name}", b"still here")
        assert innocent.line()["data"] == "still here"
        wait_until(lambda: state(first, "wire", f"{wire.uid}/tv") == "live")
        assert other.uid == wire.uid


def test_any_connection_to_a_machine_lists_and_disconnects_the_wires_of_all_its_workers(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", "--workers", "2") as server, ExitStack() as stack:
        wires = [stack.enter_context(Wire(server, uid=new_user(), hid="phone").opened()) for _ in range(16)]
        names = sorted(f"{wire.uid}/phone" for wire in wires)
        for _ in range(4):  # each connection may go to another worker
            shown = listed(server, kind="wire")
            assert [view["name"] for view in shown["recipients"]] == names
            assert (shown["kinds"], shown["total"]) == ({"wire": 16}, 16)
        for wire in wires:
            assert act(server, "wire", f"{wire.uid}/phone", "disconnect").status == 200
            assert wire.rest() == []
        assert listed(server, kind="wire")["total"] == 0
        said = ask(server, "GET", "/v1/read", stream="/_actions").json["entries"]
        assert len(said) == 16


def test_what_one_node_tells_another_of_its_recipients_is_bounded() -> None:
    views = [RecipientView("wire", str(number), "sps", "live", ("/s" * 250,)) for number in range(100)]

    assert len(cut(views, 512 * 1024)) == 100
    assert 10 < len(cut(views, 16 * 1024)) < 32
    assert cut(views, 0) == []
