from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.client.http import ApiError
from penstock.client.msgstream import MessageStream, SessionEnded
from penstock.errors import InputInvalid
from penstock.testing import RunningServer, wait_until
from tests.api.client import ask

TRANSPORTS = ("shortpolling", "longpolling", "websocket")
pytestmark = pytest.mark.doors


def login(server: RunningServer, actor: str) -> str:
    key: str = ask(server, "POST", "/v1/sessions", json.dumps({"actorId": actor}).encode()).json["sessionKey"]
    return key


def emit(server: RunningServer, actor: str, *messages: list[Any]) -> None:
    assert ask(server, "POST", "/v1/emit", json.dumps({"actors": [actor], "messages": messages}).encode()).status == 200


def waiting(server: RunningServer, actor: str) -> int:
    count: int = ask(server, "GET", f"/v1/sessions/{actor}").json["waiting"]
    return count


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_come_in_order_and_are_confirmed(shared_server: RunningServer, transport: str) -> None:
    actor = f"order-{transport}"
    key = login(shared_server, actor)
    emit(shared_server, actor, ["a", 1], ["b"])
    emit(shared_server, actor, ["c", None])

    def more(seconds: float) -> None:
        emit(shared_server, actor, ["later"])

    stream = MessageStream(shared_server.url, key, transport=transport, sleep=more)
    got = stream.messages()
    three = [next(got) for _ in range(3)]
    assert [(one.type, one.data, one.has_data) for one in three] == [
        ("a", 1, True),
        ("b", None, False),
        ("c", None, True),
    ]
    if transport != "shortpolling":  # a short poll's pause emits it
        emit(shared_server, actor, ["later"])
    assert next(got).type == "later"
    got.close()
    wait_until(lambda: waiting(shared_server, actor) == 1)  # the last one was not handled to its end


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_listeners_hear_from_the_most_to_the_least_specific(shared_server: RunningServer, transport: str) -> None:
    actor = f"listen-{transport}"
    key = login(shared_server, actor)
    emit(shared_server, actor, ["shop.purchase", {"item": "boots"}], ["shop"], ["shopping"])
    heard: list[tuple[str, str, Any]] = []
    stream = MessageStream(shared_server.url, key, transport=transport, sleep=lambda seconds: None)
    for path in ("shop", "shop.purchase", "sho"):
        stream.on(path, lambda name, data, path=path: heard.append((path, name, data)))  # type: ignore[misc]

    def end(name: str, data: Any) -> None:
        ask(shared_server, "DELETE", f"/v1/sessions/{actor}", reason="loggedOut")

    stream.on("shopping", end)
    with pytest.raises(SessionEnded) as ended:
        stream.run()

    assert ended.value.reason in ("loggedOut", "noSession")
    assert heard == [
        ("shop.purchase", "shop.purchase", {"item": "boots"}),
        ("shop", "shop.purchase", {"item": "boots"}),
        ("shop", "shop", None),
    ]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_was_away_is_come_back_to(server: RunningServer, transport: str) -> None:
    key = login(server, "alice")
    emit(server, "alice", ["one"])
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if seconds >= 1.75 and server.process.poll() is not None:
            server.restart()
            emit(server, "alice", ["two"])

    stream = MessageStream(server.url, key, transport=transport, interval=0.01, retry=3.5, sleep=pause)
    got = stream.messages()
    assert next(got).type == "one"
    server.kill()

    # Pack 1 was not handled to its end when the server went; now it is, and does not come a second time.
    assert next(got).type == "two"
    assert any(1.75 <= seconds <= 3.5 for seconds in pauses)
    got.close()


def test_a_server_that_stays_away_is_asked_ever_more_seldom(server: RunningServer) -> None:
    key = login(server, "bob")
    emit(server, "bob", ["one"])
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (9, 10):
            server.restart()
            emit(server, "bob", ["more"])

    stream = MessageStream(server.url, key, sleep=pause)
    got = stream.messages()
    next(got)
    server.kill()
    next(got)
    longest = [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert all(most / 2 <= seconds <= most for seconds, most in zip(pauses, longest, strict=True))

    server.kill()
    next(got)
    assert 0.5 <= pauses[9] <= 1, "the next failure is the first again"
    got.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_bad_key_ends_it(shared_server: RunningServer, transport: str) -> None:
    with pytest.raises(SessionEnded, match="invalidSessionKey"):
        next(MessageStream(shared_server.url, "nokey", transport=transport).messages())


def test_what_cannot_be_is_refused(shared_server: RunningServer) -> None:
    with pytest.raises(InputInvalid):
        MessageStream(shared_server.url, "a:b", transport="pigeon")
    with pytest.raises(InputInvalid):
        MessageStream("ftp://x", "a:b")
    with pytest.raises(ApiError, match="No sessionKey"):
        next(MessageStream(shared_server.url, "").messages())


def test_the_end_of_a_session_is_heard_although_packs_wait_to_be_confirmed(shared_server: RunningServer) -> None:
    """The server says so and closes in one breath: what is sent to it then fails, what it said is there."""
    for number in range(20):
        actor = f"ends-{number}"
        key = login(shared_server, actor)
        emit(shared_server, actor, ["shop"])
        sleeps: list[float] = []
        stream = MessageStream(shared_server.url, key, transport="websocket", sleep=sleeps.append)
        messages = stream.messages()
        next(messages)
        ask(shared_server, "DELETE", f"/v1/sessions/{actor}", reason="loggedOut")
        with pytest.raises(SessionEnded):
            next(messages)
        assert len(sleeps) <= 2, "it came back again and again"
