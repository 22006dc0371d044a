"""What somebody tries who means no good: floods, races, and nonsense where only the server should write."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import RunningServer, wait_until
from tests.api.client import ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.test_system_streams import grants_alone_decide
from tests.doors.sps_client import Wire, new_user, notify_id

AT_ONCE = 40
JUNK = (
    b"x",
    b"\xff\xfe",
    b"null\n",
    b"{}\n\x01\x02",
    b'{"node":"local","epoch":1,"sequence":1,"rows":[[1,"sent","","/users/7",1,9,5]],"who":[["sps","7"]]}\n\5\0\0\0',
)


def listeners(server: RunningServer, room: str) -> int:
    count: int = ask(server, "GET", "/rooms", tid=room).json["rooms"][room]
    return count


def last_state(server: RunningServer, *users: str) -> Counter[str]:
    """What presence says of these users in the end."""
    states: dict[str, str] = {}
    seen = 0
    while entries := ask(server, "GET", "/v1/read", stream="/_presence", **{"from": seen}).json["entries"]:
        seen += len(entries)
        for line in (line for entry in entries for line in entry["data"].splitlines()):
            states.update(
                (uid, line.partition('"state":"')[2].partition('"')[0]) for uid in users if f'"{uid}"' in line
            )
    return Counter(states.values())


@pytest.mark.parametrize("count", [65, 1000, 10_000])
def test_a_long_list_of_topics_is_refused(shared_server: RunningServer, count: int) -> None:
    answer = ask(shared_server, "GET", "/subscribe", uid=new_user(), tid=",".join(f"t{n}" for n in range(count)))

    assert answer.status in (413, 414)


def test_nobody_joins_ten_thousand_topics_one_by_one(shared_server: RunningServer) -> None:
    with Wire(shared_server, tid=",".join(f"t{n}" for n in range(60))).opened() as wire:
        joined = [ask(shared_server, "POST", "/join", uid=wire.uid, tid=f"x{n}").status for n in range(20)]
        assert joined == [200] * 4 + [413] * 16
        assert ask(shared_server, "POST", "/join", uid=wire.uid, tid="y1,y2,t1").status == 413
        id = notify_id(shared_server, "room", tid="t59")

        assert wire.line()["id"] == id  # and nothing has changed
        assert len(ask(shared_server, "GET", "/online", uid=wire.uid).json["devices"][0]["rooms"]) == 64


def test_of_many_who_want_the_same_device_at_once_one_has_it(shared_server: RunningServer) -> None:
    uid = new_user()

    def listen(_: int) -> list[Any]:
        with Wire(shared_server, uid=uid, hid="same").opened() as wire:
            lines: list[Any] = []
            while (line := wire.line()) is not None:
                lines.append(line["event"])
                if line["event"] == "message":
                    break
            return lines

    with ThreadPoolExecutor(AT_ONCE) as pool:
        heard = [pool.submit(listen, number) for number in range(AT_ONCE)]
        wait_until(lambda: sum(one.done() for one in heard) == AT_ONCE - 1)
        notify_id(shared_server, "user", uid=uid, hid="same")

        assert sorted(one.result() for one in heard) == [["message"]] + [["replaced"]] * (AT_ONCE - 1)
    wait_until(lambda: last_state(shared_server, uid) == {"offline": 1})


@pytest.mark.parametrize("reset", [False, True])
def test_who_hangs_up_before_its_turn_leaves_nothing_behind(shared_server: RunningServer, reset: bool) -> None:
    room, users = f"room{new_user()}", [new_user() for _ in range(200)]
    for _ in range(20):
        assert publish(shared_server, f"/rooms/{room}", b"x" * 2000).status == 201
    for uid in users:
        head = f"GET /subscribe?uid={uid}&tid={room}&o=0 HTTP/1.1\r\nHost: test\r\n"
        with socket.create_connection(("127.0.0.1", shared_server.port)) as connection:
            connection.sendall(f"{head}Authorization: Bearer {shared_server.admin_token}\r\n\r\n".encode())
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    wait_until(lambda: listeners(shared_server, room) == 0)
    wait_until(lambda: not last_state(shared_server, *users)["online"])


def test_nonsense_in_the_servers_own_streams_stops_nobody_from_confirming(tmp_path: Path) -> None:
    # Given a log of the time when others could write there
    with start_sabotaged(tmp_path / "data", grants_alone_decide) as server:
        for stream in ("/_ledger", "/_presence"):
            for body in JUNK:
                assert publish(server, stream, body).status == 201
        with Wire(server, uid="7", hid="phone").opened() as wire:
            id = notify_id(server, "user", uid="7")
            wire.line()
            ask(server, "GET", "/v1/why", entry=id, recipient="7/phone")
            server.kill()
        server.restart()

        with Wire(server, uid="7", hid="phone").opened():
            assert ask(server, "POST", "/subsist", uid="7", hid="phone", o=id).status == 204
            assert ask(server, "GET", "/v1/why", entry=id, recipient="7/phone").json["verdict"] == "acked"
