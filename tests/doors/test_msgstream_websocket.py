"""The message stream over WebSockets: the same packs, confirmed by frames of ids."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from penstock.limits import CONFIRM_BYTES
from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.doors.msgstream_client import (
    LongPoll,
    actor_of,
    connected,
    emit,
    login,
    new_actor,
    open_socket,
    packs,
    poll,
    receive,
)


def closed(socket: ClientConnection) -> tuple[int, str]:
    """Code and reason with which the server closes it; nothing may come before."""
    with pytest.raises(ConnectionClosed) as caught:
        socket.recv(20)
    close = caught.value.rcvd
    assert close is not None
    return close.code, close.reason


def test_packs_come_as_they_are_emitted(shared_server: RunningServer) -> None:
    key = login(shared_server)
    with open_socket(shared_server, key) as socket:
        emit(shared_server, key, ["one", {"n": 1}])
        assert socket.recv(20) == '{"1":[["one",{"n": 1}]]}'
        emit(shared_server, key, ["two"])
        assert receive(socket) == {"2": [["two"]]}


def test_everything_unconfirmed_comes_at_each_connect(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for _ in range(11):
        emit(shared_server, key)
    with open_socket(shared_server, key) as socket:
        assert list(receive(socket)) == [str(number) for number in range(1, 12)]
        socket.send("1,3,10")
    wait_until(lambda: waiting(shared_server, key) == 8)
    with open_socket(shared_server, key) as socket:
        assert list(receive(socket)) == ["2", "4", "5", "6", "7", "8", "9", "11"]


def waiting(server: RunningServer, key: str) -> int:
    count: int = ask(server, "GET", f"/v1/sessions/{actor_of(key)}").json["waiting"]
    return count


@pytest.mark.parametrize("frame", ["", "abc", "1", "2,x", "0", "9999999999999999999999999"])
def test_frames_that_name_nothing_change_nothing(shared_server: RunningServer, frame: str) -> None:
    key = login(shared_server)
    with open_socket(shared_server, key) as socket:
        socket.send(frame)
        emit(shared_server, key)
        assert receive(socket).keys() == {"1"}
        socket.send(frame.replace("1", "7"))
    assert packs(shared_server, key).keys() == {"1"}


def test_ids_in_the_url_are_not_confirmed(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    with open_socket(shared_server, key, confirmIds="1", transport="whatever") as socket:
        assert receive(socket).keys() == {"1"}


def test_all_that_is_not_confirmed_comes_with_each_pack_where_that_is_wanted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with start_server(tmp_path_factory.mktemp("resend"), msgstream_resend="all") as server:
        key = login(server)
        with open_socket(server, key) as socket:
            emit(server, key)
            assert receive(socket).keys() == {"1"}
            emit(server, key)
            assert receive(socket).keys() == {"1", "2"}
            socket.send("1")
            wait_until(lambda: waiting(server, key) == 1)
            emit(server, key)
            assert receive(socket).keys() == {"2", "3"}


def test_binary_frames_close_it_and_the_packs_stay(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key)
    with open_socket(shared_server, key) as socket:
        receive(socket)
        socket.send(b"1")
        code, reason = closed(socket)
        assert code == 1003
        assert "text" in reason
    assert packs(shared_server, key).keys() == {"1"}


def test_a_frame_of_endless_ids_closes_it(shared_server: RunningServer) -> None:
    with open_socket(shared_server, login(shared_server)) as socket:
        socket.send("1," * CONFIRM_BYTES)
        assert closed(socket)[0] == 1009


def test_bad_sessions_are_told_and_closed(shared_server: RunningServer) -> None:
    key = login(shared_server)
    for wrong, reason in (
        ("nocolon", "invalidSessionKey"),
        (f"{new_actor()}:x", "noSession"),
        (f"{actor_of(key)}:wrong", "keyMismatch"),
        ("x" * 4000 + ":y", "noSession"),
    ):
        with open_socket(shared_server, wrong) as socket:
            assert receive(socket) == {"0": [["session.unset", reason]]}
            assert closed(socket) == (1000, "")


def test_without_a_key_it_is_closed(shared_server: RunningServer) -> None:
    with connect(f"ws://127.0.0.1:{shared_server.port}/msgstream") as socket:
        assert closed(socket)[0] == 1008


def test_the_newest_connection_wins_across_transports(shared_server: RunningServer) -> None:
    key = login(shared_server)
    with open_socket(shared_server, key) as first:
        wait_until(lambda: connected(shared_server, key) == "websocket")
        with open_socket(shared_server, key) as second:
            assert closed(first) == (1000, "")
            poll(shared_server, key)
            assert closed(second) == (1000, "")
    held = LongPoll(shared_server, key).held()
    with open_socket(shared_server, key) as third:
        assert held.answer().status == 204
        emit(shared_server, key)
        assert receive(third).keys() == {"1"}


def test_a_late_close_of_the_old_connection_changes_nothing(shared_server: RunningServer) -> None:
    key = login(shared_server)
    with open_socket(shared_server, key) as first:
        wait_until(lambda: connected(shared_server, key) == "websocket")
        with open_socket(shared_server, key) as second:
            assert closed(first) == (1000, "")  # and by now it has answered the close
            emit(shared_server, key, ["still"])
            assert receive(second) == {"1": [["still"]]}
            assert connected(shared_server, key) == "websocket"
    assert "Fatal error" not in shared_server.log_text()


def test_a_stopping_server_closes_it(server: RunningServer) -> None:
    with open_socket(server, login(server)) as socket:
        server.stop()
        assert closed(socket) == (1000, "")


def test_aiohttp_understands_it_too(shared_server: RunningServer) -> None:
    key = login(shared_server)
    emit(shared_server, key, ["é", "ü"])

    async def play() -> object:
        url = f"http://127.0.0.1:{shared_server.port}/msgstream"
        async with aiohttp.ClientSession() as client:
            async with client.ws_connect(url, params={"sessionKey": key}) as socket:
                first = await socket.receive_json(timeout=20)
                await socket.send_str("1")
            params = {"sessionKey": key, "transport": "longpolling", "confirmIds": "1"}
            polling = asyncio.create_task(client.get(url, params=params))
            await asyncio.to_thread(wait_until, lambda: connected(shared_server, key) == "longpolling")
            await asyncio.to_thread(emit, shared_server, key, ["after"])
            async with await polling as answer:
                return first, await answer.json()

    assert asyncio.run(play()) == ({"1": [["é", "ü"]]}, {"2": [["after"]]})


def test_a_socket_that_does_not_read_gets_everything_later(shared_server: RunningServer) -> None:
    key = login(shared_server)
    with open_socket(shared_server, key) as socket:
        big = "x" * 100_000
        for number in range(30):
            emit(shared_server, key, ["big", number if number % 2 else big])
        got: dict[str, object] = {}
        while len(got) < 30:
            got |= receive(socket)
        assert list(got) == [str(number) for number in range(1, 31)]
        assert json.loads(json.dumps(got["1"])) == [["big", big]]
