"""Everybody who receives, in one list: searched, sorted, cut into pages; and what can be done about one of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, Tail, ask, publish
from tests.doors import msgstream_client, trickle_client
from tests.doors.eventhorizon_client import Model, add_pusher, append, create, scripted, subscribe
from tests.doors.push_service import Browser, bind, push_service
from tests.doors.sps_client import Wire, notify
from tests.doors.user_agent import UserAgent

ODD = "<script>alert(1)</script> ünïcode/%2F"
SLOW_RETRIES = {
    "eventhorizon_activity_interval": 0.05,
    "eventhorizon_push_repeat": 0.3,
    "eventhorizon_push_retry": 600,
    "eventhorizon_push_retry_longest": 600,
    "webpush_send_retry": 600,
    "webpush_send_retry_longest": 600,
}
"""Whoever waits after a failure waits for longer than any test: only `retry` can bring it back."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("recipients") / "data", **SLOW_RETRIES) as running:
        yield running


def listed(server: RunningServer, **params: object) -> dict[str, Any]:
    reply = ask(server, "GET", "/v1/recipients", **params)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def one(server: RunningServer, kind: str, name: str) -> dict[str, Any] | None:
    reply = ask(server, "GET", "/v1/recipients/waiting", kind=kind, name=name)
    found: dict[str, Any] | None = reply.json["recipient"] if reply.status == 200 else None
    return found


def waiting(server: RunningServer, kind: str, name: str, **params: object) -> dict[str, Any]:
    reply = ask(server, "GET", "/v1/recipients/waiting", kind=kind, name=name, **params)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json["waiting"]
    return found


def act(server: RunningServer, kind: str, name: str, action: str, token: str = "") -> Reply:
    body = json.dumps({"kind": kind, "name": name, "action": action}).encode()
    return ask(server, "POST", "/v1/recipients/act", body, token=token)


def actions(server: RunningServer) -> list[dict[str, Any]]:
    entries = ask(server, "GET", "/v1/read", stream="/_actions", limit=1000).json["entries"]
    return [json.loads(entry["data"]) for entry in entries]


def state(server: RunningServer, kind: str, name: str) -> str:
    view = one(server, kind, name)
    return view["state"] if view else ""


def test_every_kind_is_in_the_list_with_what_it_says_of_itself(server: RunningServer) -> None:
    with ExitStack() as open_things:
        enter = open_things.enter_context
        wire = enter(Wire(server, hid="phone")).opened()
        enter(Tail(server, "/orders/>", consumer=ODD))
        agent = enter(UserAgent(server))
        agent.subscribe()
        actor = msgstream_client.actor_of(msgstream_client.login(server, "<b>actor</b>"))
        service, app = enter(push_service()), enter(scripted(Model("/_sub/listed")))
        binding = bind(server, Browser().subscription(service.endpoint("listed")), "/orders/eu")
        pusher = add_pusher(server, app.url)
        channel = trickle_client.made(server, "listed")
        ask(server, "POST", "/v1/pipeline/consumers/nightly", b'{"position":"earliest"}')
        shown = listed(server, limit=1000)

    names = {(view["kind"], view["name"]): view for view in shown["recipients"]}
    assert shown["kinds"].keys() == {"wire", "tail", "agent", "session", "binding", "pusher", "channel", "consumer"}
    assert ("tail", ODD) in names
    assert names["tail", ODD]["streams"] == ["/orders/>"]
    assert names["session", actor]["state"] == "away"
    assert names["wire", f"{wire.uid}/phone"]["actions"] == ["disconnect"]
    assert names["binding", binding]["actions"] == ["pause", "retry"]
    assert names["pusher", pusher]["unit"] == "bytes"
    assert ("channel", channel) in names
    assert ("consumer", "nightly") in names
    assert shown["total"] == len(shown["recipients"]) == shown["found"]
    now_ms = shown["ms"]
    for view in (names["wire", f"{wire.uid}/phone"], names["tail", ODD], names["binding", binding]):
        assert 0 <= now_ms - view["since_ms"] < 60_000


def test_a_list_is_searched_filtered_and_cut_into_pages(server: RunningServer) -> None:
    with ExitStack() as tails:
        for number in range(7):
            tails.enter_context(Tail(server, "/paged", consumer=f"paged-{number}"))
        pages = [listed(server, kind="tail", search="PAGED-", limit=3, **{"from": begin}) for begin in (0, 3, 6, 9)]

        assert [len(page["recipients"]) for page in pages] == [3, 3, 1, 0]
        assert {page["found"] for page in pages} == {7}
        names = [view["name"] for page in pages for view in page["recipients"]]
        assert names == sorted(names) == [f"paged-{number}" for number in range(7)]
        assert listed(server, kind="tail", state="behind", search="paged-")["found"] == 0
        newest = [view["since_ms"] for view in listed(server, search="/paged", sort="since")["recipients"]]
        assert (len(newest), newest) == (7, sorted(newest, reverse=True))


def test_several_tails_of_one_name_are_one_recipient_and_end_together(server: RunningServer) -> None:
    with Tail(server, "/twice", consumer="twice") as first, Tail(server, "/twice", consumer="twice") as second:
        assert [view["connections"] for view in listed(server, search="twice")["recipients"]] == [2]
        with Tail(server, "/twice", consumer="innocent") as other:
            assert act(server, "tail", "twice", "disconnect").status == 200
            assert [tail.response.read() for tail in (first, second)] == [b"", b""]
            publish(server, "/twice", b"still here")
            assert other.line()["data"] == "still here"
    assert state(server, "tail", "twice") == ""


def test_a_wire_that_is_disconnected_comes_back_and_misses_nothing(server: RunningServer) -> None:
    last = publish(server, "/before").json["id"]
    with Wire(server, hid="tv") as wire:
        name = f"{wire.opened().uid}/tv"
        reply = act(server, "wire", name, "disconnect")
        assert (reply.status, reply.json["recipient"]) == (200, None)
        assert wire.rest() == []
    notify(server, "user", b"while away", uid=wire.uid)
    with Wire(server, hid="tv", uid=wire.uid, o=last) as again:
        assert "while away" in json.dumps(again.opened().line())
    said = actions(server)[-1]
    assert (said["action"], said["kind"], said["recipient"], said["by"]) == ("disconnect", "wire", name, "admin")
    assert said["address"]
    assert reply.json["action"] > 0


def test_what_waits_for_a_wire_that_takes_nothing_is_shown(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stuck:
        line, token = "GET /v1/tail?streams=/stuck&consumer=stuck HTTP/1.1", server.admin_token
        stuck.sendall(f"{line}\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        wait_until(lambda: state(server, "tail", "stuck") == "live")
        for _ in range(60):
            publish(server, "/stuck", b"x" * 200_000)
        wait_until(lambda: state(server, "tail", "stuck") == "behind")
        page = waiting(server, "tail", "stuck", limit=5)
        slowest = listed(server, sort="lag", limit=1)["recipients"][0]

        assert len(page["items"]) == 5
        assert page["more"]
        assert {item["stream"] for item in page["items"]} == {"/stuck"}
        assert page["items"][0]["bytes"] == 200_000
        assert (slowest["name"], slowest["lag"] > 0) == ("stuck", True)


def test_a_session_and_a_user_agent_are_disconnected_and_keep_what_waits(server: RunningServer) -> None:
    key = msgstream_client.login(server)
    actor = msgstream_client.actor_of(key)
    refused = act(server, "session", actor, "disconnect")
    assert (refused.status, refused.code) == (409, "action_impossible")
    with msgstream_client.open_socket(server, key) as web_socket:
        msgstream_client.emit(server, key, ["first <b>"])
        msgstream_client.receive(web_socket)
        assert state(server, "session", actor) == "connected"
        assert act(server, "session", actor, "disconnect").status == 200
        wait_until(lambda: state(server, "session", actor) == "away")
    assert one(server, "session", actor)["lag"] == 1  # type: ignore[index]
    assert len(waiting(server, "session", actor)["items"]) == 1
    with UserAgent(server) as agent:
        agent.subscribe()
        [found] = listed(server, kind="agent", state="connected")["recipients"]
        assert act(server, "agent", found["name"], "disconnect").status == 200
        wait_until(lambda: state(server, "agent", found["name"]) == "away")
        assert waiting(server, "agent", found["name"])["items"] == []


def test_a_pusher_is_paused_resumed_and_tries_again_at_once(server: RunningServer) -> None:
    create(server, "/_sub/retry", "/retry")
    subscribe(server, "/retry", "/_sub/retry")
    model, broken = Model("/_sub/retry"), [True]
    with scripted(lambda request: (500, "<b>broken</b>") if broken[0] else model(request)) as app:
        id = add_pusher(server, app.url)
        wait_until(lambda: state(server, "pusher", id) == "failing")
        assert "<b>broken</b>" in one(server, "pusher", id)["error"]  # type: ignore[index]
        broken[0] = False
        assert act(server, "pusher", id, "retry").status == 200
        append(server, "/retry", "line")
        wait_until(lambda: model.applied.get("/retry") == ["line"])
        assert act(server, "pusher", id, "resume").status == 409
        assert act(server, "pusher", id, "pause").json["recipient"]["state"] == "paused"
        assert act(server, "pusher", id, "retry").code == "action_impossible"
        append(server, "/retry", "later")
        assert act(server, "pusher", id, "resume").status == 200
        wait_until(lambda: model.applied.get("/retry") == ["line", "later"])
        wait_until(lambda: waiting(server, "pusher", id)["items"] == [])


def test_a_binding_is_paused_resumed_and_tries_again_at_once_over_a_restart(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", **SLOW_RETRIES) as server:
        answer = [503]
        with push_service(lambda push: answer[0]) as service:
            id = bind(server, Browser().subscription(service.endpoint("one")), "/bound", ttl=600)
            publish(server, "/bound", b"1")
            wait_until(lambda: state(server, "binding", id) == "failing")
            answer[0] = 201
            assert act(server, "binding", id, "retry").status == 200
            wait_until(lambda: len(service.taken) == 1)
            assert act(server, "binding", id, "pause").json["recipient"]["state"] == "paused"
            publish(server, "/bound", b"2")
            publish(server, "/bound", b"3")
            server.restart()
            assert state(server, "binding", id) == "paused"
            assert len(waiting(server, "binding", id)["items"]) == 2
            assert len(service.taken) == 1
            assert act(server, "binding", id, "resume").status == 200
            wait_until(lambda: len(service.taken) == 3)
            wait_until(lambda: waiting(server, "binding", id)["items"] == [])


def test_a_channel_is_closed_and_a_consumer_cannot_be_told_anything(server: RunningServer) -> None:
    channel = trickle_client.made(server, "closing")
    assert waiting(server, "channel", channel)["items"] == []
    assert act(server, "channel", channel, "pause").code == "action_impossible"
    assert act(server, "channel", channel, "disconnect").status == 200
    assert state(server, "channel", channel) == ""
    ask(server, "POST", "/v1/pipeline/consumers/told", b'{"position":"earliest"}')
    for action in ("pause", "resume", "retry", "disconnect"):
        reply = act(server, "consumer", "told", action)
        assert (reply.status, reply.code) == (409, "action_impossible")
        assert reply.json["error"]["remedy"]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"kind": "cat"}, "input_invalid"), ({"sort": "luck"}, "input_invalid"), ({"limit": 0}, "input_invalid"),
        ({"search": "x" * 300}, "input_invalid"), ({"frm": 1}, "input_invalid"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(server: RunningServer, params: dict[str, object], code: str) -> None:
    reply = ask(server, "GET", "/v1/recipients", **params)

    assert (reply.status, reply.code) == (400, code)


def test_what_is_refused_changes_nothing_and_is_no_entry(server: RunningServer) -> None:
    before = len(actions(server))
    with Tail(server, "/refused", consumer="refused") as tail:
        assert act(server, "tail", "nobody", "disconnect").status == 404
        assert act(server, "tail", "refused", "pause").status == 409
        assert ask(server, "POST", "/v1/recipients/act", b'{"kind":"cat"}').status == 400
        assert ask(server, "POST", "/v1/recipients/act", b"{", token="wrong").status == 401
        publish(server, "/refused", b"on")
        assert tail.line()["data"] == "on"
    assert len(actions(server)) == before


def test_only_the_admin_sees_and_acts(server: RunningServer) -> None:
    from tests.doors.sps_client import token

    user = token(server, "77")
    for method, path in (
        ("GET", "/v1/recipients"), ("GET", "/v1/recipients/waiting"), ("POST", "/v1/recipients/act"),
        ("GET", "/v1/trouble"), ("POST", "/v1/trouble/redrive"), ("GET", "/v1/why/recipients"),
    ):  # fmt: skip
        assert ask(server, method, path, b"{}" if method == "POST" else None, token=user).status == 403, path
        assert ask(server, method, path, b"{}" if method == "POST" else None, token=None).status == 401, path
