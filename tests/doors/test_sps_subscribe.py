"""Opening a wire: parameters, refusals in their order, forms, resume and replacement."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from penstock.testing import RunningServer, require_program, start_server, wait_until
from tests.api.client import ask, publish
from tests.doors.sps_client import Wire, new_user, notify, notify_id, token
from tests.doors.sps_place import place


def online(server: RunningServer, uid: str) -> list[str]:
    """The devices of a user that listen."""
    return [device["hid"] for device in ask(server, "GET", "/online", uid=uid).json["devices"]]


# ── forms ──────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_begins_at_once_and_says_where_the_log_is(shared_server: RunningServer) -> None:
    newest = notify_id(shared_server, "user", uid=new_user())
    with Wire(shared_server, hid="phone", tid="earth,mars") as wire:
        opened = wire.line()

    assert wire.status == 200
    assert wire.headers["content-type"] == "application/x-ndjson"
    assert wire.headers["cache-control"] == "no-store"
    assert "content-length" not in wire.headers
    assert opened.pop("newest") >= newest
    assert opened == {"event": "open", "uid": wire.uid, "hid": "phone", "tids": ["earth", "mars"]}


def test_every_event_is_one_line_in_one_chunk(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        ids = [notify_id(shared_server, "user", body, uid=wire.uid) for body in (b"hello", b'{"a": [1, 2]}', b"\xff")]
        events = wire.lines(3)

    assert [event["id"] for event in events] == ids == sorted(ids)
    assert [event.get("data") for event in events] == ["hello", {"a": [1, 2]}, None]
    assert events[2]["data_base64"] == "/w=="


def test_several_events_of_one_moment_are_chunks_of_their_own(shared_server: RunningServer) -> None:
    uid = new_user()
    for body in (b"a", b"b", b"c"):
        notify(shared_server, "user", body, uid=uid)

    with Wire(shared_server, uid=uid, o=0).opened() as wire:
        assert wire.data(3) == ["a", "b", "c"]


def test_raw_sends_the_publishers_bytes_and_nothing_else(shared_server: RunningServer) -> None:
    with Wire(shared_server, format="raw") as wire:
        notify(shared_server, "user", b"\x00\xffa\nb", uid=wire.uid)
        notify(shared_server, "user", b"c", uid=wire.uid)

        assert [wire.chunk(), wire.chunk()] == [b"\x00\xffa\nb", b"c"]


def test_http_1_0_gets_lines_without_chunks(shared_server: RunningServer) -> None:
    with Wire(shared_server, version="1.0").opened() as wire:
        notify(shared_server, "user", b"old", uid=wire.uid)

        assert not wire.chunked
        assert wire.line()["data"] == "old"


def test_an_event_source_gets_an_event_stream(shared_server: RunningServer) -> None:
    uid = new_user()
    first = notify_id(shared_server, "user", b"before", uid=uid)
    with Wire(shared_server, {"Accept": "text/event-stream"}, uid=uid) as wire:
        hello = wire.chunk()
        id = notify_id(shared_server, "user", b"two\nlines", uid=uid)
        event = wire.chunk()

    assert wire.headers["content-type"] == "text/event-stream"
    assert hello.startswith(b"retry: 2000\nid: ")
    assert int(hello.split(b"id: ")[1]) >= first
    assert event == b"id: %d\nevent: message\ndata: two\ndata: lines\n\n" % id


def test_names_of_the_later_readme_mean_the_same(shared_server: RunningServer) -> None:
    uid = new_user()
    with Wire(shared_server, u=uid, uid=uid, t="tv", r="earth", i=30) as wire:
        opened = wire.line()

    assert (opened["uid"], opened["hid"], opened["tids"]) == (uid, "tv", ["earth"])


def test_a_negative_user_is_a_user(shared_server: RunningServer) -> None:
    with Wire(shared_server, uid="-1").opened() as wire:
        notify(shared_server, "user", b"minus", uid="-1")

        assert wire.line()["data"] == "minus"


# ── refusals ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "params",
    [
        {"uid": ""}, {"uid": "abc"}, {"uid": "1", "i": "x"}, {"uid": "1", "o": "x"}, {"uid": "1", "o": "-1"},
        {"uid": "1", "u": "2"}, {"uid": "1", "nonsense": "1"}, {"uid": "1", "tid": "x" * 65}, {"uid": "1", "tid": "a*"},
        {"uid": "1", "tid": "a/b"}, {"uid": "1", "tid": "/a//b"}, {"uid": "1", "hid": "x" * 65},
        {"uid": "1", "format": "xml"}, {"uid": "1", "s": "soon"},
    ],
)  # fmt: skip
def test_a_malformed_parameter_is_refused_before_anybody_asks_who_it_is(
    shared_server: RunningServer, params: dict[str, str]
) -> None:
    assert ask(shared_server, "GET", "/subscribe", token=None, **params).status == 400


def test_a_user_is_required(shared_server: RunningServer) -> None:
    assert ask(shared_server, "GET", "/subscribe").status == 400


def test_refusals_come_in_their_order(shared_server: RunningServer) -> None:
    theirs = token(shared_server, "1")

    assert ask(shared_server, "POST", "/subscribe", token=None, uid="x").status == 405
    assert ask(shared_server, "GET", "/subscribe", token=None, uid="x").status == 400
    stranger = ask(shared_server, "GET", "/subscribe", token=None, uid="2")
    assert (stranger.status, stranger.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert ask(shared_server, "GET", "/subscribe", token="nonsense", uid="2").status == 401
    assert ask(shared_server, "GET", "/subscribe", token=theirs, uid="2").status == 403


def test_a_topic_needs_a_grant(shared_server: RunningServer) -> None:
    uid = new_user()
    narrow = token(shared_server, uid, ("/rooms/earth",))

    with Wire(shared_server, token=narrow, uid=uid, tid="earth").opened():
        assert ask(shared_server, "GET", "/subscribe", token=narrow, uid=uid, tid="earth,mars").status == 403
        assert ask(shared_server, "GET", "/subscribe", token=narrow, uid=uid, tid="/orders").status == 403
        assert ask(shared_server, "POST", "/join", token=narrow, uid=uid, tid="mars").status == 403


def test_a_token_in_the_url_may_only_be_able_to_listen(shared_server: RunningServer) -> None:
    uid = new_user()
    listens = token(shared_server, uid)
    publishes = subprocess.run(
        [sys.executable, "-m", "penstock", "token", "--data", str(shared_server.data), "--sub", uid, "--publish", "/a"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip

    with Wire(shared_server, token=None, uid=uid, access_token=listens).opened():
        refused = [shared_server.admin_token, publishes]
        answers = [ask(shared_server, "GET", "/subscribe", token=None, uid=uid, access_token=one) for one in refused]
        assert [answer.status for answer in answers] == [403, 403]
        assert ask(shared_server, "GET", "/subscribe", token=None, uid=uid, access_token="x").status == 401
    assert listens not in shared_server.log_text()


# ── resume ─────────────────────────────────────────────────────────────────────────────────────


def test_a_device_that_comes_back_gets_exactly_what_it_missed(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    with Wire(shared_server, tid=room).opened() as wire:
        notify(shared_server, "user", b"seen", uid=wire.uid)
        seen = wire.line()["id"]
    notify(shared_server, "user", b"missed", uid=wire.uid)
    notify(shared_server, "user", b"another's", uid=new_user())
    notify(shared_server, "room", b"missed too", tid=f"{room},other")

    with Wire(shared_server, uid=wire.uid, tid=room, o=seen).opened() as again:
        notify(shared_server, "user", b"live", uid=wire.uid)
        assert again.data(3) == ["missed", "missed too", "live"]


def test_the_topics_of_this_subscribe_decide_what_is_replayed(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    notify(shared_server, "room", b"to the room", tid=room)
    with Wire(shared_server, o=0).opened() as wire:
        notify(shared_server, "user", b"mine", uid=wire.uid)
        seen = []
        while "mine" not in seen:
            seen.append(wire.line()["data"])

    assert "to the room" not in seen


def test_what_a_browser_says_by_itself_wins(shared_server: RunningServer) -> None:
    uid = new_user()
    ids = [notify_id(shared_server, "user", body, uid=uid) for body in (b"a", b"b")]

    with Wire(shared_server, {"Last-Event-ID": str(ids[0])}, uid=uid, o=0).opened() as wire:
        assert wire.line()["id"] == ids[1]
    assert ask(shared_server, "GET", "/subscribe", headers={"Last-Event-ID": "x"}, uid=uid).status == 400


def test_who_knows_more_than_the_log_is_told(shared_server: RunningServer) -> None:
    with Wire(shared_server, o=10**12).opened() as wire:
        reset = wire.line()
        notify(shared_server, "user", b"live", uid=wire.uid)

        assert (reset["event"], reset["asked"]) == ("reset", 10**12)
        assert wire.line()["data"] == "live"


def test_ids_grow_and_nothing_is_missing_over_a_restart(server: RunningServer) -> None:
    first = notify_id(server, "user", b"before", uid="7")
    server.restart()
    second = notify_id(server, "user", b"after", uid="7")

    assert second > first
    with Wire(server, uid="7", o=0).opened() as wire:
        assert [line["id"] for line in wire.lines(2)] == [first, second]


async def test_what_was_trimmed_is_named_as_a_gap(tmp_path: Path) -> None:
    async with place(tmp_path, recent=1) as here:
        for body in (b"lost", b"lost too"):
            await here.publish("7", body)
        trimmed = here.engine.log.followed
        await here.engine.log.trim(trimmed)
        await here.publish("7", b"left")
        reader, _ = await here.subscribe("uid=7&o=0")
        lines = [json.loads(await asyncio.wait_for(reader.readline(), 20)) for _ in range(3)]

    assert lines[1] == {"event": "gap", "from": 1, "to": trimmed, "oldest": trimmed + 1}
    assert lines[2]["data"] == "left"


# ── one wire per device ────────────────────────────────────────────────────────────────────────


def test_a_second_subscribe_replaces_the_first_and_says_so(shared_server: RunningServer) -> None:
    with (
        Wire(shared_server, hid="phone").opened() as first,
        Wire(shared_server, uid=first.uid, hid="phone").opened() as second,
    ):
        assert first.rest() == [{"event": "replaced"}]
        assert first.hung_up()  # the connection ends, too: there is nothing to come back for
        notify(shared_server, "user", b"x", uid=first.uid)
        assert second.line()["data"] == "x"


def test_another_device_does_not_and_clients_without_one_share_a_slot(shared_server: RunningServer) -> None:
    with (
        Wire(shared_server).opened() as shared,
        Wire(shared_server, uid=shared.uid, hid="tv").opened() as tv,
        Wire(shared_server, uid=shared.uid).opened(),
    ):
        assert shared.rest() == [{"event": "replaced"}]
        assert notify(shared_server, "user", b"x", uid=shared.uid).json["delivered"] == 2
        assert tv.line()["data"] == "x"


def test_the_topics_of_the_wire_before_are_not_inherited(shared_server: RunningServer) -> None:
    room = f"room{new_user()}"
    with Wire(shared_server, tid=room).opened() as first, Wire(shared_server, uid=first.uid).opened():
        assert notify(shared_server, "room", tid=room).json["delivered"] == 0


def test_the_late_end_of_the_old_wire_does_not_take_the_new_one_offline(shared_server: RunningServer) -> None:
    first = Wire(shared_server, hid="phone").opened()
    with Wire(shared_server, uid=first.uid, hid="phone").opened() as second:
        first.close()
        assert online(shared_server, first.uid) == ["phone"]
        assert notify(shared_server, "user", b"x", uid=first.uid).json["delivered"] == 1
        assert second.line()["data"] == "x"


def test_a_head_request_replaces_nobody(shared_server: RunningServer) -> None:
    with Wire(shared_server).opened() as wire:
        assert ask(shared_server, "HEAD", "/subscribe", uid=wire.uid).status == 200
        notify(shared_server, "user", b"still here", uid=wire.uid)
        assert wire.line()["data"] == "still here"


def test_who_hangs_up_is_offline(shared_server: RunningServer) -> None:
    wire = Wire(shared_server).opened()
    assert online(shared_server, wire.uid) == [""]
    wire.close()

    wait_until(lambda: online(shared_server, wire.uid) == [])


def test_a_stop_of_the_server_ends_every_wire_properly(server: RunningServer) -> None:
    with Wire(server).opened() as wire:
        server.stop()
        assert wire.rest() == []


# ── other clients ──────────────────────────────────────────────────────────────────────────────


def test_curl_is_a_client(shared_server: RunningServer, tmp_path: Path) -> None:
    uid, output = new_user(), tmp_path / "curl.out"
    url = f"{shared_server.url}/subscribe?uid={uid}&tid=earth"
    command = [require_program("curl"), "-sN", "-H", f"Authorization: Bearer {shared_server.admin_token}", url]
    with output.open("wb") as out, subprocess.Popen(command, stdout=out) as curl:
        wait_until(lambda: output.read_bytes().count(b"\n") == 1)
        notify(shared_server, "user", b"hello", uid=uid)
        wait_until(lambda: output.read_bytes().count(b"\n") == 2)
        curl.terminate()

    assert [json.loads(line).get("data") for line in output.read_text().splitlines()] == [None, "hello"]


def test_http_client_is_a_client(shared_server: RunningServer) -> None:
    uid = new_user()
    connection = http.client.HTTPConnection("127.0.0.1", shared_server.port, timeout=20)
    connection.request("GET", f"/subscribe?uid={uid}", headers={"Authorization": f"Bearer {shared_server.admin_token}"})
    response = connection.getresponse()
    assert json.loads(response.readline())["event"] == "open"
    publish(shared_server, f"/users/{uid}", b"through v1")

    assert json.loads(response.readline())["data"] == "through v1"
    connection.close()


def test_aiohttp_is_a_client(shared_server: RunningServer) -> None:
    uid = new_user()

    async def listen() -> list[object]:
        headers = {"Authorization": f"Bearer {shared_server.admin_token}"}
        async with (
            aiohttp.ClientSession(shared_server.url, headers=headers) as session,
            session.get("/subscribe", params={"uid": uid}) as wire,
        ):
            opened = json.loads(await wire.content.readline())
            async with session.post("/notify_to_user", params={"uid": uid}, data=b"hi") as published:
                assert (await published.json())["delivered"] == 1
            return [opened["event"], json.loads(await wire.content.readline())["data"]]

    assert asyncio.run(listen()) == ["open", "hi"]


def test_a_device_that_comes_back_is_not_kept_out_by_its_own_former_wire(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_connections_per_token=1) as server:
        uid = new_user()
        held = token(server, uid)
        first = Wire(server, token=held, uid=uid, hid="phone").opened()
        # Whoever is new is one too many, however its token comes
        for params, header in (({"hid": "watch"}, held), ({"hid": "watch", "access_token": held}, None)):
            with Wire(server, token=header, uid=uid, **params) as refused:
                assert (refused.status, refused.headers["retry-after"]) == (429, "5")
        assert online(server, uid) == ["phone"]

        # but the same device again takes its own place, as often as it likes
        for _ in range(3):
            second = Wire(server, token=None, uid=uid, hid="phone", access_token=held).opened()
            assert first.line()["event"] == "replaced"
            first.close()
            first = second
        first.close()
        wait_until(lambda: not online(server, uid))
        with Wire(server, token=held, uid=uid, hid="watch") as last:
            assert last.status == 200
