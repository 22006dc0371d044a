"""Topics: rooms and streams, changed while the wire is open."""

from __future__ import annotations

import pytest

from penstock.testing import RunningServer
from tests.api.client import Reply, ask, publish
from tests.doors.sps_client import Wire, new_user, notify, notify_id, token


def change(server: RunningServer, wire: Wire, how: str, tid: str, **params: str) -> Reply:
    method, path = ("PUT", "/rooms") if how == "rooms" else ("POST", f"/{how}")
    return ask(server, method, path, uid=wire.uid, tid=tid, **params)


@pytest.fixture
def room() -> str:
    """A room that no other test has."""
    return f"room{new_user()}"


def test_an_event_to_a_room_reaches_its_members_only(shared_server: RunningServer, room: str) -> None:
    with (
        Wire(shared_server, tid=room).opened() as one,
        Wire(shared_server, tid=f"other,{room}").opened() as two,
        Wire(shared_server, tid="other").opened() as outside,
    ):
        assert notify(shared_server, "room", b"in", tid=room).json["delivered"] == 2
        notify(shared_server, "user", b"next", uid=outside.uid)

        assert [wire.line()["data"] for wire in (one, two, outside)] == ["in", "in", "next"]


def test_one_event_to_several_rooms_comes_once_and_under_the_first_that_matches(
    shared_server: RunningServer, room: str
) -> None:
    a, b, c = (f"{room}{letter}" for letter in "abc")
    with (
        Wire(shared_server, tid=f"{b},{a}").opened() as both,
        Wire(shared_server, tid=b).opened() as second,
        Wire(shared_server, tid=c).opened() as neither,
    ):
        answer = notify(shared_server, "room", b"x", tid=f"{a},{b},{a}").json
        notify(shared_server, "user", b"end", uid=both.uid)
        notify(shared_server, "user", b"end", uid=neither.uid)

        assert answer["delivered"] == 2
        events = both.lines(2)
        assert [event["data"] for event in events] == ["x", "end"]
        assert (events[0]["id"], events[0]["tid"]) == (answer["id"], a)
        assert second.line()["tid"] == b
        assert neither.line()["data"] == "end"


def test_join_and_leave_work_from_the_next_event_on(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server).opened() as wire:
        notify(shared_server, "room", b"too early", tid=room)
        assert change(shared_server, wire, "join", room).json == {"tids": [room]}
        notify(shared_server, "room", b"inside", tid=room)
        assert change(shared_server, wire, "leave", room).json == {"tids": []}
        notify(shared_server, "room", b"too late", tid=room)
        notify(shared_server, "user", b"still online", uid=wire.uid)

        assert wire.data(2) == ["inside", "still online"]


def test_put_replaces_all_topics(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server, tid=f"{room}a,{room}b").opened() as wire:
        assert change(shared_server, wire, "rooms", f"{room}b,{room}c").json == {"tids": [f"{room}b", f"{room}c"]}
        for letter in "abc":
            notify(shared_server, "room", letter.encode(), tid=room + letter)

        assert wire.data(2) == ["b", "c"]
        assert change(shared_server, wire, "rooms", "").json == {"tids": []}


def test_a_change_twice_is_a_change_once(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server).opened() as wire:
        for _ in range(2):
            assert change(shared_server, wire, "join", room).json == {"tids": [room]}
        notify(shared_server, "room", b"once", tid=room)
        notify(shared_server, "user", b"end", uid=wire.uid)

        assert wire.data(2) == ["once", "end"]


def test_topics_of_a_device_that_is_offline_cannot_be_changed(shared_server: RunningServer, room: str) -> None:
    uid = new_user()

    for method, path in (("POST", "/join"), ("POST", "/leave"), ("PUT", "/rooms")):
        answer = ask(shared_server, method, path, uid=uid, tid=room)
        assert (answer.status, answer.code) == (404, "offline")


def test_only_this_device_changes(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server, hid="a").opened() as one, Wire(shared_server, uid=one.uid, hid="b").opened():
        change(shared_server, one, "join", room, hid="a")

        assert ask(shared_server, "GET", "/rooms", tid=room).json == {"rooms": {room: 1}}


def test_a_topic_may_be_any_stream_and_any_pattern(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server, tid=f"/{room}/one,/{room}/deep/>").opened() as wire:
        publish(shared_server, f"/{room}/one", b"1")
        publish(shared_server, f"/{room}/two", b"2")
        publish(shared_server, f"/{room}/deep/a/b", b"3")
        change(shared_server, wire, "join", f"/{room}/*")
        publish(shared_server, f"/{room}/two", b"4")
        events = wire.lines(3)

    assert [(event["tid"], event["data"]) for event in events] == [
        (f"/{room}/one", 1),
        (f"/{room}/deep/a/b", 3),
        (f"/{room}/two", 4),
    ]


def test_a_pattern_over_rooms_covers_what_is_sent_to_several(shared_server: RunningServer, room: str) -> None:
    with Wire(shared_server, tid="/rooms/*").opened() as wire:
        notify(shared_server, "room", b"one", tid=room)
        id = notify_id(shared_server, "room", b"two", tid=f"{room}a,{room}b")
        events = wire.lines(2)

    assert [event["tid"] for event in events] == [room, f"{room}a"]
    assert events[1]["id"] == id


def test_a_wide_pattern_shows_a_user_nothing_of_other_users(shared_server: RunningServer, room: str) -> None:
    uid, other = new_user(), new_user()
    everything = token(shared_server, uid, (">",))
    with Wire(shared_server, token=everything, uid=uid, tid="/*/*").opened() as wire:
        notify(shared_server, "user", b"not yours", uid=other)
        notify(shared_server, "user", b"yours", uid=uid)
        publish(shared_server, f"/{room}/open", b"open")

        assert wire.data(2) == ["yours", "open"]
    assert ask(shared_server, "GET", "/subscribe", token=everything, uid=uid, tid=f"/users/{other}").status == 403


def test_one_wire_has_a_limited_number_of_topics(shared_server: RunningServer, room: str) -> None:
    full = ",".join(f"{room}{number}" for number in range(64))
    with Wire(shared_server, tid=full).opened() as wire:
        assert change(shared_server, wire, "join", f"{room}x").status == 413
        assert change(shared_server, wire, "join", f"{room}0").status == 200


def test_counting_needs_topics_with_names_and_a_grant(shared_server: RunningServer, room: str) -> None:
    uid = new_user()
    theirs = token(shared_server, uid, (f"/rooms/{room}",))

    assert ask(shared_server, "GET", "/rooms", token=theirs, tid=room).json == {"rooms": {room: 0}}
    assert ask(shared_server, "GET", "/rooms", token=theirs, tid="other").status == 403
    assert ask(shared_server, "GET", "/rooms", tid="/rooms/*").status == 400
    assert ask(shared_server, "GET", "/rooms").status == 400


def test_an_event_for_several_rooms_that_names_none_is_for_who_asked_for_that_stream(
    shared_server: RunningServer, room: str
) -> None:
    with Wire(shared_server, tid=room).opened() as member, Wire(shared_server, tid=f"{room},/rooms").opened() as both:
        assert publish(shared_server, "/rooms", b"to nobody's room").status == 201
        notify_id(shared_server, "room", b"to the room", tid=room)

        assert member.data(1) == ["to the room"]
        assert [(line["tid"], line["data"]) for line in both.lines(2)] == [
            ("/rooms", "to nobody's room"), (room, "to the room"),
        ]  # fmt: skip
