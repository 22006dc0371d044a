"""What a backend does: sessions, emits, broadcasts, streams that sessions follow; and what the ledger says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.ledger import LedgerEvent, decode
from penstock.limits import ACTOR_BYTES, EMIT_ACTORS, PACK_BYTES, PACK_MESSAGES, SESSION_META_BYTES
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, ask, publish
from tests.doors.msgstream_client import (
    LongPoll,
    actor_of,
    connected,
    emit,
    emit_raw,
    login,
    new_actor,
    open_socket,
    packs,
    poll,
    receive,
)


def post(server: RunningServer, path: str, wanted: Any, token: str = "") -> Reply:
    body = wanted if isinstance(wanted, bytes) else json.dumps(wanted).encode()
    return ask(server, "POST", path, body, token=token)


# ── sessions ───────────────────────────────────────────────────────────────────────────────────


def test_a_session_key_is_the_actor_and_a_secret(shared_server: RunningServer) -> None:
    actor = new_actor()
    key = login(shared_server, actor)

    name, _, secret = key.rpartition(":")
    assert name == actor
    assert len(secret) == 16
    assert secret.isalnum()


def test_a_new_login_ends_the_former_session(shared_server: RunningServer) -> None:
    actor = new_actor()
    old = login(shared_server, actor)
    emit(shared_server, old, ["for the old one"])
    with open_socket(shared_server, old) as socket:
        receive(socket)
        new = login(shared_server, actor)
        assert receive(socket) == {"0": [["session.unset", "keyMismatch"]]}

    assert poll(shared_server, old).json == {"0": [["session.unset", "keyMismatch"]]}
    assert packs(shared_server, new) == {}
    assert emit(shared_server, new, ["first of the new"]) == 1
    assert packs(shared_server, new) == {"1": [["first of the new"]]}


def test_a_session_can_be_ended_and_its_client_hears_why(shared_server: RunningServer) -> None:
    key = login(shared_server)
    waiting = LongPoll(shared_server, key).held()

    assert ask(shared_server, "DELETE", f"/v1/sessions/{actor_of(key)}", reason="loggedOut").status == 204

    assert waiting.answer().json == {"0": [["session.unset", "loggedOut"]]}
    assert poll(shared_server, key).json == {"0": [["session.unset", "noSession"]]}
    assert ask(shared_server, "DELETE", f"/v1/sessions/{actor_of(key)}").code == "session_unknown"


def test_sessions_are_listed(shared_server: RunningServer) -> None:
    prefix = f"{new_actor()}-"
    for number in range(5):
        login(shared_server, f"{prefix}{number}", meta={"n": number}, ttl=60, follow=["/a/*"])
    emit_raw(shared_server, {"actors": f"{prefix}0", "messages": [["x"]]})

    first = ask(shared_server, "GET", "/v1/sessions", after=prefix, limit=3).json
    rest = ask(shared_server, "GET", "/v1/sessions", after=first["after"], limit=2).json
    shown = ask(shared_server, "GET", f"/v1/sessions/{prefix}0").json

    assert [one["actorId"] for one in first["sessions"] + rest["sessions"]] == [f"{prefix}{n}" for n in range(5)]
    assert first["sessions"][1]["meta"] == {"n": 1}
    assert (shown["lastPack"], shown["waiting"], shown["follow"], shown["ttl"]) == (1, 1, ["/a/*"], 60)


def test_find_actors_keeps_their_order(shared_server: RunningServer) -> None:
    one, two = new_actor(), new_actor()
    login(shared_server, two)
    login(shared_server, one)

    found = post(shared_server, "/v1/actors", {"actors": ["nobody", two, "nobody2", one]}).json

    assert found == {"online": [two, one], "offline": ["nobody", "nobody2"]}


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({}, 400),
        (b"{", 400),
        (b'{"actorId":"a\xff"}', 400),
        ({"actorId": ""}, 400),
        ({"actorId": "x" * (ACTOR_BYTES + 1)}, 400),
        ({"actorId": "a\nb"}, 400),
        ({"actorId": 7}, 400),
        ({"actorId": "a", "ttl": 0}, 400),
        ({"actorId": "a", "ttl": 10**9}, 400),
        ({"actorId": "a", "after": -1}, 400),
        ({"actorId": "a", "unknown": 1}, 400),
        ({"actorId": "a", "follow": ["no slash"]}, 400),
        ({"actorId": "a", "follow": ["/x"] * 65}, 413),
        ({"actorId": "a", "meta": "x" * SESSION_META_BYTES}, 413),
    ],
)
def test_a_session_that_cannot_be_is_refused(shared_server: RunningServer, wanted: Any, status: int) -> None:
    answer = post(shared_server, "/v1/sessions", wanted)

    assert answer.status == status
    assert answer.json["error"]["remedy"]


def token(server: RunningServer, *options: str) -> str:
    from subprocess import run
    from sys import executable

    command = [executable, "-m", "penstock", "token", "--data", str(server.data), "--sub", "backend", *options]
    return run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_each_call_needs_its_grant(shared_server: RunningServer) -> None:
    sessions = token(shared_server, "--grant", "sessions", "--subscribe", "/public/*")
    emits = token(shared_server, "--grant", "emit", "--publish", "/public/*")
    actor = new_actor()

    assert post(shared_server, "/v1/sessions", {"actorId": actor, "follow": ["/public/a"]}, sessions).status == 201
    assert post(shared_server, "/v1/sessions", {"actorId": actor, "follow": ["/secret"]}, sessions).status == 403
    assert post(shared_server, "/v1/sessions", {"actorId": actor, "follow": ["/_ledger"]}, sessions).status == 403
    assert post(shared_server, "/v1/sessions", {"actorId": actor}, emits).status == 403
    assert emit_raw(shared_server, {"actors": [actor], "messages": [["x"]]}, emits).status == 200
    assert emit_raw(shared_server, {"actors": [actor], "messages": [["x"]]}, sessions).status == 403
    assert emit_raw(shared_server, {"streams": ["/public/a"], "messages": [["x"]]}, emits).status == 200
    assert emit_raw(shared_server, {"streams": ["/other"], "messages": [["x"]]}, emits).status == 403
    assert emit_raw(shared_server, {"broadcast": True, "messages": [["x"]]}, sessions).status == 403
    assert ask(shared_server, "POST", "/v1/emit", b"{}", token=None).status == 401


# ── emits ──────────────────────────────────────────────────────────────────────────────────────


def test_one_call_is_one_pack_for_each_actor(shared_server: RunningServer) -> None:
    one, two = login(shared_server), login(shared_server)
    emit(shared_server, two)
    names = [actor_of(one), "nobody", actor_of(two), actor_of(one)]

    answer = emit_raw(shared_server, {"actors": names, "messages": [["a", 1], ["b"]]})

    assert answer.json == {"packs": {actor_of(one): 1, actor_of(two): 2}, "offline": ["nobody"]}
    assert packs(shared_server, one) == {"1": [["a", 1], ["b"]]}
    assert packs(shared_server, two)["2"] == [["a", 1], ["b"]]


def test_data_are_copied_byte_for_byte(shared_server: RunningServer) -> None:
    key = login(shared_server)
    actor = actor_of(key).encode()
    data = '{ "a" : [1.50, 1e2, "\\u00e9\u00e9\\/"] }'.encode()
    body = b'{"actors":["%b"],"messages":[["quo\\"te",%b],["nothing",null],["none"]]}' % (actor, data)

    assert post(shared_server, "/v1/emit", body).status == 200
    assert poll(shared_server, key).body == b'{"1":[["quo\\"te",%b],["nothing",null],["none"]]}' % data


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"actors":["a"],"messages":[["x",\xff]]}', 400),
        (b'{"actors":["a"],"messages":[["x",{"a":1,}]]}', 400),
        ({"messages": [["x"]]}, 400),
        ({"actors": [], "messages": [["x"]]}, 400),
        ({"actors": ["a"]}, 400),
        ({"actors": ["a"], "messages": []}, 400),
        ({"actors": ["a"], "messages": [[]]}, 400),
        ({"actors": ["a"], "messages": [["x", 1, 2]]}, 400),
        ({"actors": ["a"], "messages": [[1]]}, 400),
        ({"actors": ["a"], "messages": [[""]]}, 400),
        ({"actors": ["a"], "messages": [["x\n"]]}, 400),
        ({"actors": ["a"], "messages": ["x"]}, 400),
        ({"actors": ["a"], "broadcast": True, "messages": [["x"]]}, 400),
        ({"actors": ["a"], "message": [["x"]]}, 400),
        ({"streams": ["no slash"], "messages": [["x"]]}, 400),
        ({"actors": [f"a{n}" for n in range(EMIT_ACTORS + 1)], "messages": [["x"]]}, 413),
        ({"actors": ["a"], "messages": [["x"]] * (PACK_MESSAGES + 1)}, 413),
        ({"actors": ["a"], "messages": [["x", "y" * PACK_BYTES]]}, 413),
        ({"streams": ["/m/1", "/m/2"], "messages": [["x"]] * 600}, 413),
    ],
)
def test_an_emit_that_cannot_be_is_refused(shared_server: RunningServer, wanted: Any, status: int) -> None:
    answer = post(shared_server, "/v1/emit", wanted)

    assert answer.status == status, answer
    assert answer.json["error"]["remedy"]


def test_a_session_that_is_full_takes_no_more_and_loses_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_server(tmp_path_factory.mktemp("full"), msgstream_packs=3, msgstream_bytes=1000) as server:
        key, large = login(server), login(server)
        for _ in range(3):
            emit(server, key)
        emit(server, large, ["large", "x" * 900])
        wanted = {"actors": [actor_of(key), actor_of(large)], "messages": [["y", "z" * 200]]}

        assert emit_raw(server, wanted).json == {"packs": {}, "full": [actor_of(key), actor_of(large)]}
        assert list(packs(server, key)) == ["1", "2", "3"]
        packs(server, key, confirm="1")
        assert emit_raw(server, wanted).json["packs"] == {actor_of(key): 4}


# ── broadcasts and streams ─────────────────────────────────────────────────────────────────────


def test_a_broadcast_reaches_everybody_who_was_there(server: RunningServer) -> None:
    offline, polling, socket_key = login(server), login(server), login(server)
    held = LongPoll(server, polling).held()
    with open_socket(server, socket_key) as socket:
        wait_until(lambda: connected(server, socket_key) == "websocket")
        assert emit_raw(server, {"broadcast": True, "messages": [["all", 1], ["of you"]]}).status == 200
        late = login(server)

        assert receive(socket) == {"1": [["all", 1], ["of you"]]}
        assert held.answer().json == {"1": [["all", 1], ["of you"]]}
        assert packs(server, offline) == {"1": [["all", 1], ["of you"]]}
        assert packs(server, late) == {}


def test_nothing_is_written_for_those_who_are_away(server: RunningServer) -> None:
    key = login(server)
    for _ in range(5):
        emit_raw(server, {"broadcast": True, "messages": [["all"]]})

    assert ask(server, "GET", f"/v1/sessions/{actor_of(key)}").json["waiting"] == 0
    assert list(packs(server, key)) == ["1", "2", "3", "4", "5"]
    assert ask(server, "GET", f"/v1/sessions/{actor_of(key)}").json["waiting"] == 5


def test_a_session_follows_streams(shared_server: RunningServer) -> None:
    stream = f"/shop/{new_actor()}"
    publish(shared_server, stream, b'{"before":1}')
    key = login(shared_server, follow=[stream])
    with open_socket(shared_server, key) as socket:
        wait_until(lambda: connected(shared_server, key) == "websocket")
        publish(shared_server, stream, b'{"a":1}')
        publish(shared_server, stream, b"text", Event_Type="shop.note")
        publish(shared_server, stream, b"\xff\x00")
        emit(shared_server, key, ["emitted"])
        got: dict[str, Any] = {}
        while len(got) < 4:
            got |= receive(socket)

    assert got == {
        "1": [[stream.strip("/").replace("/", "."), {"a": 1}]],
        "2": [["shop.note", "text"]],
        "3": [[stream.strip("/").replace("/", "."), {"data_base64": "/wA="}]],
        "4": [["emitted"]],
    }


def test_a_session_may_begin_at_an_earlier_entry(shared_server: RunningServer) -> None:
    stream = f"/old/{new_actor()}"
    for number in range(300):
        publish(shared_server, stream, b"%d" % number)
    key = login(shared_server, follow=[stream], after=0)
    found = packs(shared_server, key)

    assert list(found) == [str(number) for number in range(1, 301)]
    assert [pack[0][1] for pack in found.values()] == list(range(300))


def test_messages_emitted_into_a_stream_are_its_entries(shared_server: RunningServer) -> None:
    stream = f"/emitted/{new_actor()}"
    answer = emit_raw(shared_server, {"streams": stream, "messages": [["a.b", {"x": 1}], ["c"]]})

    entries = ask(shared_server, "GET", "/v1/read", stream=stream).json["entries"]
    assert [(entry["type"], entry["data"]) for entry in entries] == [("a.b", '{"x": 1}'), ("c", "")]
    assert (answer.json["first"], answer.json["last"]) == (entries[0]["id"], entries[1]["id"])


def test_an_entry_that_is_gone_leaves_no_hole(server: RunningServer) -> None:
    key = login(server, follow=["/short"])
    with open_socket(server, key) as socket:
        wait_until(lambda: connected(server, key) == "websocket")
        publish(server, "/short", b"1", Expires_In="1")
        assert receive(socket) == {"1": [["short", 1]]}
    emit(server, key, ["after"])
    wait_until(lambda: packs(server, key) == {"1": [], "2": [["after"]]})


# ── restarts ───────────────────────────────────────────────────────────────────────────────────


def test_packs_numbers_and_sessions_survive_kill_9(server: RunningServer) -> None:
    key = login(server, follow=["/f"], meta={"a": 1})
    for _ in range(3):
        emit(server, key)
    publish(server, "/f", b"4")
    assert len(packs(server, key)) == 4
    packs(server, key, confirm="1,2,3,4")
    emit(server, key, ["five"])

    server.kill()
    server.restart()

    publish(server, "/f", b"6")
    assert packs(server, key) == {"5": [["five"]], "6": [["f", 6]]}
    assert emit(server, key) == 7
    assert ask(server, "GET", f"/v1/sessions/{actor_of(key)}").json["meta"] == {"a": 1}


# ── the ledger ─────────────────────────────────────────────────────────────────────────────────


def events(server: RunningServer, actor: str) -> list[LedgerEvent]:
    """Everything in the ledger about an actor's packs, by time."""
    import base64

    ask(server, "GET", "/v1/why", entry=1, recipient="anybody")  # it writes down what waits
    found, after, more = [], 0, True
    while more:
        page = ask(server, "GET", "/v1/read", streams="/_ledger", after=after, limit=1000).json
        for entry in page["entries"]:
            raw = entry.get("data_base64")
            body = base64.b64decode(raw) if raw is not None else entry["data"].encode()
            found += [event for event in decode(body)[1] if event.recipient == actor]
        after, more = page["upto"], page["more"]
    return found


def states(server: RunningServer, actor: str) -> list[str]:
    return [event.state for event in events(server, actor)]


def test_the_ledger_knows_every_pack(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    packs(shared_server, key)
    packs(shared_server, key, confirm="1")
    emit(shared_server, key)
    ask(shared_server, "DELETE", f"/v1/sessions/{actor_of(key)}", reason="loggedOut")

    told = [(event.state, event.reason, event.number) for event in events(shared_server, actor_of(key))]

    assert told == [
        ("accepted", "", 1),
        ("sent", "", 1),
        ("acked", "", 1),
        ("accepted", "", 2),
        ("dropped", "loggedOut", 2),
    ]


def test_why_answers_for_a_session(shared_server: RunningServer) -> None:
    stream = f"/why/{new_actor()}"
    key = login(shared_server, follow=[stream])
    with open_socket(shared_server, key) as socket:
        wait_until(lambda: connected(shared_server, key) == "websocket")
        first, second = (publish(shared_server, stream, b"%d" % n).json["id"] for n in range(2))
        while "2" not in receive(socket):
            pass
        socket.send("1")
        wait_until(lambda: ask(shared_server, "GET", f"/v1/sessions/{actor_of(key)}").json["waiting"] == 1)

    verdicts = [
        ask(shared_server, "GET", "/v1/why", entry=id, recipient=actor_of(key)).json["verdict"]
        for id in (first, second)
    ]
    assert verdicts == ["acked", "sent"]


def test_why_answers_for_a_pack(shared_server: RunningServer) -> None:
    key = login(shared_server)
    answer = emit_raw(shared_server, {"actors": [actor_of(key), "nobody"], "messages": [["x"]]})
    message = answer.headers["message-id"]
    before = ask(shared_server, "GET", "/v1/why", entry=message, recipient=actor_of(key)).json["verdict"]
    packs(shared_server, key)
    packs(shared_server, key, confirm="1")
    after = ask(shared_server, "GET", "/v1/why", entry=message, recipient=actor_of(key)).json

    assert (before, after["verdict"]) == ("accepted", "acked")
    assert [event["state"] for event in after["events"]] == ["accepted", "sent", "acked"]


def test_a_replaced_session_drops_what_waited_and_says_so(shared_server: RunningServer) -> None:
    actor = new_actor()
    emit(shared_server, login(shared_server, actor))
    login(shared_server, actor)

    told = [(event.state, event.reason) for event in events(shared_server, actor)]
    assert told == [("accepted", ""), ("dropped", "replaced")]


def test_metrics_tell_of_sessions(shared_server: RunningServer) -> None:
    emit(shared_server, login(shared_server))
    text = ask(shared_server, "GET", "/metrics").body.decode()

    for name in ("sessions_known", "sessions_connected", "packs_emitted"):
        assert f"penstock_{name}" in text
