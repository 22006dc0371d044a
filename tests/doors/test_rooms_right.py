"""`/rooms` has the events for several rooms: who may not read all rooms, or that stream by name, never sees them.

One rule (`core.matching.covers_of`), asked through every way to read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.api import auth
from penstock.api.auth import Caller, open_keys
from penstock.core.matching import covers
from penstock.errors import Forbidden
from penstock.testing import RunningServer, start_server
from tests.api.client import Tail, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.doors.sps_client import Wire, new_user, notify_id
from tests.doors.test_webpush_sender import GOOD

SECRET = "for two rooms"
ALL_GRANTS = ("pushers", "sessions", "webpush", "channels", "emit", "export")
GRANTS: dict[tuple[str, ...], bool] = {
    ("/*",): False,
    ("/rooms/a",): False,
    ("/rooms/*",): False,
    ("/*", "/rooms/a"): False,
    ("/*", "/*/a"): False,
    ("/*", "/rooms/*"): True,
    ("/*", "/*/*"): True,
    ("/rooms",): True,
    (">",): True,
    ("/>",): True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("rooms") / "data") as running:
        notify_id(running, "room", SECRET.encode(), tid="a,b")
        assert publish(running, "/open", b"last").status == 201
        yield running


def read(server: RunningServer, token: str, **params: object) -> bool:
    answer = ask(server, "GET", "/v1/read", token=token, **params)
    assert answer.status in (200, 403)
    return SECRET in answer.body.decode()


def tail(server: RunningServer, token: str, streams: str) -> bool:
    with Tail(server, streams, token, after=0) as opened:
        if opened.status == 403:
            return False
        seen = [opened.line()["data"]]
        while seen[-1] not in (SECRET, "last"):
            seen.append(opened.line()["data"])
        return SECRET in seen


def lines(server: RunningServer, token: str) -> bool:
    answer = ask(server, "POST", "/reader/read", b'{"Cursor":"/rooms:0:0"}', token=token)
    return SECRET in answer.body.decode()


def segment(server: RunningServer, token: str) -> bool:
    return SECRET in ask(server, "GET", "/trickle/~/rooms/0", token=token).body.decode()


def let_in(server: RunningServer, token: str, path: str, **said: object) -> bool:
    answer = ask(server, "POST", path, json.dumps(said).encode(), token=token)
    assert answer.status < 500
    return answer.status != 403


def session(server: RunningServer, token: str) -> bool:
    return let_in(server, token, "/v1/sessions", actorId="a", follow=["/rooms"])


def export(server: RunningServer, token: str, streams: str) -> bool:
    newest = ask(server, "GET", "/ready").json["upto"]
    answer = ask(server, "GET", "/v1/log/arrow", token=token, after=0, upto=newest, streams=streams)
    assert answer.status in (200, 403)
    bodies = pa.ipc.open_stream(answer.body).read_all()["body"].to_pylist() if answer.status == 200 else []
    return SECRET.encode() in bodies


WAYS: dict[str, Callable[[RunningServer, str], bool]] = {
    "v1 read by index": lambda server, token: read(server, token, stream="/rooms"),
    "v1 read by id": lambda server, token: read(server, token, streams="/rooms"),
    "v1 read by pattern": lambda server, token: read(server, token, streams="/*"),
    "v1 read of everything": lambda server, token: read(server, token, streams=">"),
    "tail": lambda server, token: tail(server, token, "/rooms"),
    "tail by pattern": lambda server, token: tail(server, token, "/*"),
    "export": lambda server, token: export(server, token, "/rooms"),
    "export by pattern": lambda server, token: export(server, token, "/*"),
    "event horizon": lines,
    "event horizon subscription": lambda server, token: let_in(
        server, token, "/writer/subscribe", Stream="/rooms", SubscriptionId="/_sub/a"
    ),
    "trickle": segment,
    "web push": lambda server, token: let_in(server, token, "/v1/webpush", **{**GOOD, "stream": "/rooms"}),
    "message stream": session,
}


PATTERNS = {
    "v1 read by pattern": "/*", "tail by pattern": "/*", "export by pattern": "/*", "v1 read of everything": ">",
}  # fmt: skip


@pytest.mark.parametrize("subscribe", GRANTS, ids=" ".join)
@pytest.mark.parametrize("way", WAYS)
def test_who_sees_what_was_published_to_several_rooms(
    server: RunningServer, way: str, subscribe: tuple[str, ...]
) -> None:
    token = open_keys(server.data).issue("app", publish=("/_sub/a",), subscribe=subscribe, grants=ALL_GRANTS)
    pattern = PATTERNS.get(way)
    may_ask = pattern is None or any(covers(grant, pattern) for grant in subscribe)

    assert WAYS[way](server, token) is (GRANTS[subscribe] and may_ask)


@pytest.mark.parametrize("subscribe", [("/*",), ("/*", "/rooms/a"), ("/rooms/*",), ("/rooms/a",)], ids=" ".join)
def test_a_device_gets_events_for_the_rooms_that_it_is_in(server: RunningServer, subscribe: tuple[str, ...]) -> None:
    uid = new_user()
    token = open_keys(server.data).issue(uid, subscribe=subscribe)
    tids = ["/*"] if "/*" in subscribe else []
    tids += ["a"] if "/rooms/a" in subscribe or "/rooms/*" in subscribe else []
    with Wire(server, token=token, uid=uid, tid=",".join(tids)).opened() as wire:
        notify_id(server, "room", b"a and b", tid="a,b")
        notify_id(server, "room", b"c and d", tid="c,d")
        notify_id(server, "all", b"end")

        seen = wire.lines(1 + ("a" in tids))

    assert [event["data"] for event in seen] == ["a and b", "end"][-len(seen) :]


@pytest.mark.parametrize(("grants", "allowed"), list(GRANTS.items()))
def test_the_same_holds_for_who_publishes_to_several_rooms(grants: tuple[str, ...], allowed: bool) -> None:
    caller = Caller("app", publish=grants)
    with nullcontext() if allowed else pytest.raises(Forbidden):
        caller.check_publish("/rooms")


def no_rule_for_rooms() -> None:
    auth.covers_of = lambda grants, pattern: any(covers(grant, pattern) for grant in grants)


def test_without_the_rule_a_grant_of_one_level_sees_the_events_of_all_rooms(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", no_rule_for_rooms) as server:
        notify_id(server, "room", SECRET.encode(), tid="a,b")
        token = open_keys(server.data).issue("app", subscribe=("/*",), grants=("export",))

        assert read(server, token, stream="/rooms")
        assert read(server, token, streams="/*")
        assert export(server, token, "/*")
