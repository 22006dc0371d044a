"""A node ends when it is told to, though its NATS server hangs.

What its connection does then, point by point, is in tests/engines/test_jetstream_connection.py.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import pytest
from nats.aio.client import Client

from penstock.engines.jetstream.client import RawClient, _NotingProtocol
from penstock.testing import RunningServer, ServerFailed, start_nats, wait_until
from tests.bystander.sabotaged import start_sabotaged

BODY = b"x" * (900 << 10)
PUBLISHES = 4
KERNEL_BYTES = 64 << 10  # what each side of a connection keeps in the kernel: together far less than one publish
WITHIN = 30  # a node waits some seconds for what it has begun
CERTAIN = 8  # a node that ends by itself has ended by then


def a_kernel_that_takes_little() -> None:
    """The setting: what a server does not read stays in the node."""
    connected = _NotingProtocol.connection_made

    def connection_made(self: _NotingProtocol, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        connected(self, transport)

    _NotingProtocol.connection_made = connection_made  # type: ignore[method-assign]


def closing_is_not_bounded() -> None:
    """The sabotage: the node waits for its server to take the rest, when it closes and when it reconnects."""
    a_kernel_that_takes_little()
    RawClient.end = Client.close  # type: ignore[method-assign]
    RawClient._attempt_reconnect = Client._attempt_reconnect  # type: ignore[method-assign]


def test_a_node_ends_though_its_nats_server_reads_nothing(tmp_path: Path) -> None:
    end_beside_a_server_that_hangs(tmp_path, a_kernel_that_takes_little, WITHIN)


def test_a_node_that_does_not_bound_the_closing_of_its_connection_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="did not stop"):
        end_beside_a_server_that_hangs(tmp_path, closing_is_not_bounded, CERTAIN)


def end_beside_a_server_that_hangs(folder: Path, setting: Callable[[], None], within: float) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(folder / "nats"))
        way = stack.enter_context(Way(nats.servers[0].port))
        url = f"nats://127.0.0.1:{way.port}"
        node = stack.enter_context(start_sabotaged(folder / "node", setting, "--engine", url, log_replicas=1))
        assert b" 201 " in stack.enter_context(publish_and_go(node)).recv(100)
        way.is_open.clear()
        for _ in range(PUBLISHES):
            stack.enter_context(publish_and_go(node))
        wait_until(lambda: has_shut_its_window(way.port))

        assert node.stop(within) == 0


class Way:
    """A way to the server at a port, over which nothing goes once it is no longer open.

    A paused server would not do: its kernel takes megabytes for it, another number each time.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)  # also of those it accepts
        self._sockets = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.is_open = threading.Event()
        self.is_open.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.is_open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                pair = (self._listener.accept()[0], socket.create_connection(self._server))
                self._sockets += pair
                for one, other in (pair, pair[::-1]):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(KERNEL_BYTES):
                self.is_open.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


def has_shut_its_window(port: int) -> bool:
    """Whether who listens at *port* has no room for what somebody would send there.

    The kernel then waits with a timer of kind 4, the window probe (the sixth column of its table). Bytes that are
    merely under way prove nothing: they are there for a moment on every connection.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[2].split(":")[1], 16) == port and row[5].startswith("04:") for row in rows)


def publish_and_go(node: RunningServer) -> socket.socket:
    """Publish, without waiting for the answer."""
    publisher = socket.create_connection(("127.0.0.1", node.port))
    head = (
        f"POST /v1/publish?stream=/much HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {node.admin_token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    publisher.sendall(head.encode() + BODY)
    return publisher
