"""Publishing: one event, one id, stored once; the answer says whom it reached."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import Wires
from penstock.testing import RunningServer, wait_until
from tests.api.client import ask
from tests.doors.sps_client import Wire, new_user, notify, token
from tests.doors.sps_place import place


def test_the_answer_says_id_delivered_and_stored(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        answer = notify(shared_server, "user", b"x", uid=wire.uid)
        event = wire.line()

    assert answer.status == 200
    assert answer.json == {"id": event["id"], "delivered": 1, "stored": True}


def test_an_event_for_somebody_offline_is_stored(shared_server: RunningServer) -> None:
    uid = new_user()
    answer = notify(shared_server, "user", b"later", uid=uid).json

    assert (answer["delivered"], answer["stored"]) == (0, True)
    with Wire(shared_server, uid=uid, o=answer["id"] - 1).opened() as wire:
        assert wire.line()["data"] == "later"


def test_a_user_without_a_device_named_is_all_devices(shared_server: RunningServer) -> None:
    with Wire(shared_server, hid="a").opened() as a, Wire(shared_server, uid=a.uid, hid="b").opened() as b:
        assert notify(shared_server, "user", b"both", uid=a.uid).json["delivered"] == 2
        assert notify(shared_server, "user", b"one", uid=a.uid, hid="b").json["delivered"] == 1
        assert notify(shared_server, "user", b"none", uid=a.uid, hid="c").json["delivered"] == 0
        notify(shared_server, "user", b"end", uid=a.uid)

        assert a.data(2) == ["both", "end"]
        assert b.data(3) == ["both", "one", "end"]


def test_an_event_for_one_device_is_replayed_to_that_device_only(shared_server: RunningServer) -> None:
    uid = new_user()
    first = notify(shared_server, "user", b"for b", uid=uid, hid="b").json["id"]
    notify(shared_server, "user", b"for all", uid=uid)

    with Wire(shared_server, uid=uid, hid="a", o=first - 1).opened() as a:
        assert a.line()["data"] == "for all"
    with Wire(shared_server, uid=uid, hid="b", o=first - 1).opened() as b:
        assert b.data(2) == ["for b", "for all"]


def test_everybody_hears_what_is_for_all(server: RunningServer) -> None:
    with Wire(server).opened() as one, Wire(server, tid="earth").opened() as two:
        assert notify(server, "all", b"to everybody").json["delivered"] == 2
        assert [wire.line()["data"] for wire in (one, two)] == ["to everybody", "to everybody"]


def test_an_event_for_several_rooms_is_one_entry(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    id = notify(shared_server, "room", b"x", tid=f"{room}a,{room}b").json["id"]
    page = ask(shared_server, "GET", "/v1/read", after=id - 1, streams="/rooms,/rooms/*", limit=1).json

    assert [(entry["id"], entry["stream"]) for entry in page["entries"]] == [(id, "/rooms")]
    assert page["entries"][0]["attributes"] == {"tids": f"{room}a,{room}b"}


def test_a_type_names_the_event_and_a_key_makes_it_once(shared_server: RunningServer) -> None:
    headers = {"Event-Type": "sold", "Idempotency-Key": "once"}
    with Wire(shared_server).opened() as wire:
        first = notify(shared_server, "user", b"x", headers, uid=wire.uid).json["id"]
        again = notify(shared_server, "user", b"x", headers, uid=wire.uid).json["id"]
        notify(shared_server, "user", b"end", uid=wire.uid)
        events = wire.lines(2)

    assert first == again
    assert [event["event"] for event in events] == ["sold", "message"]
    assert notify(shared_server, "user", b"other", headers, uid=wire.uid).status == 409


def test_who_wants_text_gets_the_words_of_the_first_sps(shared_server: RunningServer) -> None:
    text = {"Accept": "text/plain"}
    with Wire(shared_server, hid="tv").opened() as wire:
        answers = [notify(shared_server, "user", b"x", text, uid=wire.uid, hid=hid).body for hid in ("tv", "phone")]

    assert answers == [f"delivered\n{wire.uid} tv\n".encode(), f"offline\n{wire.uid} phone\n".encode()]


@pytest.mark.parametrize(
    ("target", "params"),
    [
        ("user", {}), ("user", {"uid": "x"}), ("user", {"uid": "1", "tid": "a"}), ("room", {}),
        ("room", {"tid": " , "}), ("room", {"tid": "/a/*"}), ("room", {"tid": "/a,/b"}), ("room", {"tid": "a,/b"}),
        ("all", {"uid": "1"}),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_understood_is_refused_first(
    shared_server: RunningServer, target: str, params: dict[str, str]
) -> None:
    assert ask(shared_server, "POST", f"/notify_to_{target}", b"x", token=None, **params).status == 400


def test_an_empty_event_is_none_and_a_huge_one_too_much(shared_server: RunningServer) -> None:
    assert ask(shared_server, "POST", "/notify_to_user", b"", token=None, uid="1").status == 400
    assert notify(shared_server, "user", b"x" * (1024 * 1024), uid="1").status == 413
    assert ask(shared_server, "GET", "/notify_to_user", uid="1").status == 405


def test_publishing_needs_a_grant(shared_server: RunningServer) -> None:
    uid = new_user()
    listens = token(shared_server, uid)

    for target, params in (("user", {"uid": uid}), ("room", {"tid": "earth"}), ("all", {})):
        assert ask(shared_server, "POST", f"/notify_to_{target}", b"x", token=None, **params).status == 401
        assert ask(shared_server, "POST", f"/notify_to_{target}", b"x", token=listens, **params).status == 403


def test_a_room_may_be_given_as_a_stream(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    with Wire(shared_server, tid=f"{room},/{room}/log").opened() as wire:
        notify(shared_server, "room", b"a", tid=f"/rooms/{room}")
        notify(shared_server, "room", b"b", tid=f"/{room}/log")
        events = wire.lines(2)

    assert [(event["tid"], event["data"]) for event in events] == [(room, "a"), (f"/{room}/log", "b")]


# ── tokens ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"uid":"x"}', b'{"uid":1,"ttl":0}', b'{"uid":1,"more":1}', b'{"uid":1,"subscribe":["x"]}']
)
def test_a_token_is_for_a_user_for_a_time(shared_server: RunningServer, body: bytes) -> None:
    assert ask(shared_server, "POST", "/v1/tokens", body).status == 400


def test_tokens_are_made_by_the_admin_or_by_who_may_make_sessions(shared_server: RunningServer) -> None:
    body = b'{"uid":7,"subscribe":["/rooms/earth"]}'
    user = token(shared_server, "7")
    backend = make_token(shared_server, "--sub", "backend", "--grant", "sessions", "--subscribe", "/rooms/*")

    assert ask(shared_server, "POST", "/v1/tokens", body, token=None).status == 401
    assert ask(shared_server, "POST", "/v1/tokens", body, token=user).status == 403
    assert ask(shared_server, "POST", "/v1/tokens", body, token=backend).status == 201
    # A backend cannot give away what it does not have
    assert ask(shared_server, "POST", "/v1/tokens", b'{"uid":7,"subscribe":["/orders"]}', token=backend).status == 403


def make_token(server: RunningServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "penstock", "token", "--data", str(server.data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_event_may_have_a_time_to_live(shared_server: RunningServer) -> None:
    uid = new_user()
    notify(shared_server, "user", b"short", {"Expires-In": "1"}, uid=uid)
    id = notify(shared_server, "user", b"long", {"Expires-In": "600"}, uid=uid).json["id"]

    def only_the_long_one_is_left() -> bool:
        entries = ask(shared_server, "GET", "/v1/read", stream=f"/users/{uid}").json["entries"]
        return [entry["data"] for entry in entries] == ["long"]

    wait_until(only_the_long_one_is_left)
    with Wire(shared_server, uid=uid, o=0).opened() as wire:
        assert wire.line()["id"] == id


@pytest.mark.parametrize("seconds", ["0", "-1", "1.5", "soon", "9" * 12])
def test_a_time_to_live_that_is_none_is_refused(shared_server: RunningServer, seconds: str) -> None:
    answer = notify(shared_server, "user", b"x", {"Expires-In": seconds}, uid=new_user())

    assert (answer.status, answer.json["error"]["code"]) == (400, "input_invalid")


async def test_all_are_counted_also_when_they_are_served_in_several_turns(tmp_path: Path) -> None:
    async with place(tmp_path, at_once=1) as here:
        readers = [(await here.subscribe(f"uid={uid}&tid=earth"))[0] for uid in range(20)]

        assert (await here.notify("room?tid=earth"))["delivered"] == 20
        for reader in readers:
            assert b'"open"' in await reader.readline()
            assert b'"tid":"earth"' in await reader.readline()


class WaitingWire(DeviceWire):
    """The sabotage: a wire that is served in its turn counts as one that is slow."""

    __slots__ = ()

    def has(self, id: int) -> bool:
        return self.began < id and (id <= self.feed.position or not self.feed.lag)


@pytest.mark.parametrize("kind", [DeviceWire, WaitingWire])
async def test_a_device_with_patterns_that_take_long_to_look_up_is_no_slow_one(
    tmp_path: Path, kind: type[DeviceWire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wires, "kind", kind)
    async with place(tmp_path) as here:
        reader, _ = await here.subscribe("uid=7&tid=/shop/*/c/d/e/f/*")
        assert b'"open"' in await reader.readline()
        (wire,) = here.door.wires.all
        counted: list[bool] = []
        here.engine.log.follow(lambda entries: counted.append(wire.has(entries[-1].id)))  # right after the hub
        await here.publish("7", b"x")

        assert b'"data":"x"' in await reader.readline()
        assert counted == [kind is DeviceWire]
