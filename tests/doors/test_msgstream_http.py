"""The message stream over HTTP, as its seed and the original's behaviour have it."""

from __future__ import annotations

import json
import socket

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import Reply, ask
from tests.doors.msgstream_client import (
    LongPoll,
    actor_of,
    connected,
    emit,
    emit_raw,
    login,
    new_actor,
    packs,
    poll,
)


def unset(reason: str) -> bytes:
    return b'{"0":[["session.unset","%b"]]}' % reason.encode()


def test_packs_look_as_the_seed_says(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key, ["some.event.name"], ["another.event", {"some": "data"}])
    emit(shared_server, key, ["eventname", {"any": "data"}])

    answer = poll(shared_server, key)

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["pragma"] == "no-cache"
    assert json.loads(answer.body) == {
        "1": [["some.event.name"], ["another.event", {"some": "data"}]],
        "2": [["eventname", {"any": "data"}]],
    }
    assert answer.body.startswith(b'{"1":[["some.event.name"],["another.event",')


def test_nothing_is_204(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for _ in range(3):
        answer = poll(shared_server, key)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["pragma"] == "no-cache"
        assert "content-type" not in answer.headers


def test_what_is_emitted_before_the_first_connect_is_not_lost(shared_server: RunningServer) -> None:
    key = login(shared_server)
    assert emit(shared_server, key, ["early"]) == 1

    assert packs(shared_server, key) == {"1": [["early"]]}


def test_a_pack_comes_again_until_it_is_confirmed(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    assert packs(shared_server, key).keys() == packs(shared_server, key).keys() == {"1"}

    assert packs(shared_server, key, confirm="1") == {}
    assert packs(shared_server, key) == {}


def test_a_poll_never_gets_what_it_confirms(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for _ in range(12):
        emit(shared_server, key)

    assert list(packs(shared_server, key)) == [str(number) for number in range(1, 13)]
    assert list(packs(shared_server, key, confirm="2,4,11")) == ["1", "3", "5", "6", "7", "8", "9", "10", "12"]


@pytest.mark.parametrize("garbage", ["2,abc,,99,03", "2,0", ",2", "2, 2 ,+2", "2,2", "1e0,2.0,2"])
def test_ids_that_are_none_are_passed_over(shared_server: RunningServer, garbage: str) -> None:
    key = login(shared_server)
    for _ in range(3):
        emit(shared_server, key)

    assert list(packs(shared_server, key, confirm=garbage)) == ["1", "3"]


def test_a_long_poll_waits_for_a_pack(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    waiting = LongPoll(shared_server, key, confirm="1").held()

    emit(shared_server, key, ["second"])

    assert waiting.answer().json == {"2": [["second"]]}


def test_a_long_poll_with_packs_is_answered_at_once(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key, ["there"])

    assert LongPoll(shared_server, key).answer().json == {"1": [["there"]]}


def test_the_heartbeat_ends_a_long_poll(tmp_path_factory: pytest.TempPathFactory) -> None:
    with start_server(tmp_path_factory.mktemp("heartbeat"), msgstream_heartbeat=0.3) as server:
        key = login(server)
        answer = poll(server, key, transport="longpolling")
        assert (answer.status, answer.body) == (204, b"")
        emit(server, key)
        assert packs(server, key).keys() == {"1"}


def test_the_newest_poll_wins(shared_server: RunningServer) -> None:
    key = login(shared_server)
    first = LongPoll(shared_server, key).held()
    second = LongPoll(shared_server, key)
    assert first.answer().status == 204
    second.held()

    emit(shared_server, key, ["news"])

    assert second.answer().json == {"1": [["news"]]}


def test_a_short_poll_ends_a_long_one(shared_server: RunningServer) -> None:
    key = login(shared_server)
    first = LongPoll(shared_server, key).held()

    assert packs(shared_server, key) == {}
    assert first.answer().status == 204


def test_a_client_that_leaves_loses_nothing(shared_server: RunningServer) -> None:
    key = login(shared_server)
    LongPoll(shared_server, key).held().abort()
    wait_until(lambda: connected(shared_server, key) == "")

    emit(shared_server, key, ["kept"])

    assert packs(shared_server, key) == {"1": [["kept"]]}


def test_bad_sessions_get_pack_0_with_the_reason(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for wrong, reason in (
        ("nocolon", "invalidSessionKey"),
        (f"{new_actor()}:x", "noSession"),
        (f"{actor_of(key)}:wrong", "keyMismatch"),
        (":", "noSession"),
    ):
        for transport in ("shortpolling", "longpolling"):
            answer = poll(shared_server, wrong, confirm="1", transport=transport)
            assert (answer.status, answer.body) == (200, unset(reason)), wrong


def test_a_wrong_key_confirms_nothing(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    poll(shared_server, f"{actor_of(key)}:wrong", confirm="1")

    assert packs(shared_server, key).keys() == {"1"}


def raw(server: RunningServer, target: str, method: str = "GET") -> Reply:
    return ask(server, method, target, token=None)


def test_bad_requests_get_an_answer(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for query in (
        f"sessionKey={key}",
        f"sessionKey={key}&transport=",
        f"sessionKey={key}&transport=carrierpigeon",
        f"sessionKey={key}&transport=websocket",
        f"sessionKey={key}&transport=shortpolling&transport=shortpolling",
        f"sessionKey={key}&transport=shortpolling&confirmIds=1&confirmIds=2",
        "transport=shortpolling",
        "transport=longpolling&sessionKey=",
        "&".join(f"a{number}=" for number in range(100)),
        "",
    ):
        answer = raw(shared_server, f"/msgstream?{query}")
        assert answer.status == 400, query
        assert answer.headers["content-type"] == "text/plain; charset=UTF-8"
        assert answer.headers["pragma"] == "no-cache"
        assert answer.body
    assert b"carrierpigeon" in raw(shared_server, "/msgstream?transport=carrierpigeon").body


def test_a_key_given_twice_is_none(shared_server: RunningServer) -> None:
    answer = raw(shared_server, "/msgstream?transport=shortpolling&sessionKey=a:b&sessionKey=a:b")

    assert (answer.status, answer.body) == (200, unset("invalidSessionKey"))


def test_head_asks_for_no_session_and_takes_nothing(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    answer = raw(shared_server, f"/msgstream?transport=longpolling&confirmIds=1&sessionKey={key}", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "application/json"
    assert raw(shared_server, "/msgstream?transport=longpolling", "HEAD").status == 200
    assert raw(shared_server, "/msgstream?transport=nothing", "HEAD").status == 400

    assert packs(shared_server, key).keys() == {"1"}


def test_options_is_200_and_empty(shared_server: RunningServer) -> None:
    answer = raw(shared_server, "/msgstream", "OPTIONS")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")

    asked = {
        "Origin": "https://game.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "x-one",
    }
    answer = ask(shared_server, "OPTIONS", "/msgstream", headers=asked, token=None)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == "x-one"
    assert "GET" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-max-age"] == "1728000"


def test_pages_of_other_origins_may_poll(shared_server: RunningServer) -> None:
    key = login(shared_server)
    target = f"/msgstream?transport=shortpolling&sessionKey={key}"
    answer = ask(shared_server, "GET", target, headers={"Origin": "https://game.example"}, token=None)

    assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*")


def test_the_path_may_end_in_a_slash_and_has_nothing_below(shared_server: RunningServer) -> None:
    key = login(shared_server)
    assert raw(shared_server, f"/msgstream/?transport=shortpolling&sessionKey={key}").status == 204
    assert raw(shared_server, "/msgstream/more").status == 404
    assert raw(shared_server, f"/msgstream?transport=shortpolling&sessionKey={key}&rand=17", "POST").status == 204
    assert raw(shared_server, "/msgstream", "PUT").status == 405


def test_parameters_are_decoded(shared_server: RunningServer) -> None:
    key = login(shared_server, "Jörg: the 2nd/3rd")
    emit_raw(shared_server, {"actors": "Jörg: the 2nd/3rd", "messages": [["hello"]]})

    assert packs(shared_server, key) == {"1": [["hello"]]}


def test_polls_share_a_connection(shared_server: RunningServer) -> None:
    key = login(shared_server)
    target = f"/msgstream?transport=shortpolling&sessionKey={key}"
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=20) as plain:
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        plain.sendall(request * 3)  # sent ahead: they are answered one after the other
        got = b""
        while got.count(b"\r\n\r\n") < 3:
            got += plain.recv(4096)
    assert got.count(b"HTTP/1.1 204") == 3


def test_http_1_0_may_poll(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key, ["old"])
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=20) as plain:
        plain.sendall(f"GET /msgstream?transport=longpolling&sessionKey={key} HTTP/1.0\r\n\r\n".encode())
        got = b"".join(iter(lambda: plain.recv(4096), b""))
    assert got.endswith(b'{"1":[["old"]]}')


def test_a_stopping_server_answers_long_polls_at_once(server: RunningServer) -> None:
    waiting = LongPoll(server, login(server)).held()

    server.stop()

    assert waiting.answer().status == 204
