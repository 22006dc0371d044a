"""Answers that are asked for on many connections, and that nobody reads."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.api.v1.read import LargePages
from penstock.http.answering import AnsweringConnection
from penstock.testing import RunningServer, wait_until
from tests.api.client import ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

MIB = 1024 * 1024
ROOM = 48 * MIB
EVENT = b"\1" * 1_000_000  # six times as long in JSON
CONNECTIONS = 10
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(2, 6))


def ask_and_read_nothing(server: RunningServer, address: str) -> socket.socket:
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.bind((address, 0))
    asking.settimeout(60)
    asking.connect(("127.0.0.1", server.port))
    head = f"GET /v1/read?stream=/large&limit=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin_token}"
    asking.sendall(f"{head}\r\n\r\n".encode())
    return asking


def unread(server: RunningServer) -> int:
    text = ask(server, "GET", "/metrics").body.decode()
    return next(int(float(line.split()[1])) for line in text.splitlines() if line.startswith("penstock_unread_bytes "))


def check_unread(data: Path, sabotage: Callable[[], None] | None) -> None:
    with start_sabotaged(data, sabotage, server_answers_bytes=ROOM) as server:
        assert publish(server, "/large", EVENT).status == 201
        # When four addresses ask for it on ten connections each, and read nothing
        with beside(server) as bystander, ExitStack() as stack:
            asking = [
                stack.enter_context(ask_and_read_nothing(server, address))
                for address in ADDRESSES
                for _ in range(CONNECTIONS)
            ]
            statuses = Counter(one.recv(12)[9:] for one in asking)
            held = unread(server)
        bystander.noticed_nothing()
        # Then each address has one, all together have no more than their room, and the others are told so
        refused = statuses[b"503"]
        assert refused >= CONNECTIONS * len(ADDRESSES) - ROOM // (6 * MIB) - len(ADDRESSES), f"{refused} were 503"
        assert statuses[b"200"] >= len(ADDRESSES)
        assert 0 < held <= ROOM
        # and when they have left, there is room again
        wait_until(lambda: unread(server) == 0)
        assert ask(server, "GET", "/v1/read?stream=/large&limit=1").status == 200


def test_answers_that_nobody_reads_take_no_more_than_their_room(tmp_path: Path) -> None:
    check_unread(tmp_path / "data", None)


def all_in_one_turn() -> None:
    """The sabotage: pages are made as they come."""

    async def make(self, page):
        return self._make(page.entries)

    LargePages.make = make  # type: ignore[method-assign]


def test_made_in_one_turn_they_are_noticed_by_others(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="loop_cpu_ms"):
        check_unread(tmp_path / "data", all_in_one_turn)


def count_nothing() -> None:
    """The sabotage: whatever is asked for is written."""

    def answer(self, request, data):
        self.write(data)
        self.flush()

    AnsweringConnection._answer_much = answer  # type: ignore[method-assign]


def test_without_the_count_they_take_all_that_they_ask_for(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="503"):
        check_unread(tmp_path / "data", count_nothing)
