"""Apps that answer pushes: whatever they send back, it is bounded, and the others' deliveries go on."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing import RunningServer, wait_until
from penstock.wire import http_client
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.eventhorizon_client import Model, add_pusher, append, create, pusher, scripted, subscribe

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 8192),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2048),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 8192),
    "chunk extensions": (CHUNKED, b"1;" + b"x" * 60 + b"\r\nx\r\n" + b"1;y\r\nx\r\n" * 4096),
    "a chunk": (CHUNKED + b"fffffffffffffff\r\n", b"x" * 65536),
    "a body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
}
DRIP = (b"HTTP/1.1 200 OK\r\nX: ", b"x")
KERNEL_BYTES = int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])  # that nobody may have read yet
MOST_BYTES = 8 * 1024 * 1024 + KERNEL_BYTES  # of an answer
GIVEN_UP_BYTES = 2 * MOST_BYTES


class HostileApp:
    """Reads a request, then sends one thing without end, until somebody cuts the connection."""

    def __init__(self, begin: bytes, again: bytes) -> None:
        self._begin, self._again = begin, again
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/push"
        self.most, self.ended = 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()
        except OSError:
            return  # it is over

    def _answer(self, peer: socket.socket) -> None:
        sent = 0
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.recv(65536)
            for piece in itertools.chain([self._begin], itertools.repeat(self._again)):
                peer.sendall(piece)
                sent += len(piece)
                if sent > GIVEN_UP_BYTES:
                    break
        except OSError:
            pass  # somebody has cut it
        finally:
            self.most = max(self.most, sent)
            self.ended += 1
            peer.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def hostile_apps(*names: str) -> Iterator[dict[str, HostileApp]]:
    said = ENDLESS | {"byte by byte": DRIP}
    apps = {name: HostileApp(*said[name]) for name in names or said}
    try:
        yield apps
    finally:
        for app in apps.values():
            app.close()


def push_to_all(server: RunningServer, apps: dict[str, HostileApp]) -> None:
    """Push to each of them beside an honest app, and see each of them cut, and the honest one served."""
    create(server, "/_sub/honest", "/orders")
    subscribe(server, "/orders", "/_sub/honest")
    honest = Model("/_sub/honest")
    with scripted(honest) as app:
        add_pusher(server, app.url)
        ids = {name: add_pusher(server, one.url) for name, one in apps.items()}
        wanted = []
        for number in range(20):
            wanted.append(f"line {number}")
            append(server, "/orders", wanted[-1])
        wait_until(lambda: all(one.ended for one in apps.values()))
        wait_until(lambda: honest.applied.get("/orders", [])[-20:] == wanted)
    assert {name: one.most for name, one in apps.items() if one.most > MOST_BYTES} == {}
    errors = {name: pusher(server, id)["error"] for name, id in ids.items()}
    assert {name: error for name, error in errors.items() if "answer" not in error} == {}


def answers_without_limits() -> None:
    """An answer may be as long as it likes."""
    http_client.ANSWER_HEAD_BYTES = 1 << 40
    honest = http_client.AnswerReader.__init__

    def endless(self: http_client.AnswerReader, limit_bytes: int | None) -> None:
        honest(self, None)

    http_client.AnswerReader.__init__ = endless


def attack(data: Path, sabotage: Callable[[], None] | None, *names: str) -> None:
    settings = {"eventhorizon_push_timeout": 3, "eventhorizon_push_retry": 0.5}
    with start_sabotaged(data, sabotage, **settings) as server, hostile_apps(*names) as apps:
        with beside(server) as bystander:
            push_to_all(server, apps)
        bystander.noticed_nothing()


def test_an_answer_without_end_is_cut_and_delays_nobody(tmp_path: Path) -> None:
    attack(tmp_path / "data", None)


def test_answers_without_limits_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        attack(tmp_path / "data", answers_without_limits, "a header")
