"""A node ends when it is told to, though its NATS server hangs.

What its connection does then, point by point, is in tests/engines/test_jetstream_connection.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from nats.aio.client import Client

from penstock.engines.jetstream.client import RawClient, _NotingProtocol
from penstock.testing import RunningServer, ServerFailed, start_nats, wait_until
from tests.bystander.sabotaged import start_sabotaged

BODY = b"x" * (900 << 10)
PUBLISHES = 4
KERNEL_BYTES = 64 << 10  # what the kernel takes for a server that does not read: far less than one publish
WITHIN = 30  # a node waits some seconds for what it has begun
CERTAIN = 8  # a node that ends by itself has ended by then


def a_kernel_that_takes_little() -> None:
    """The setting: what a paused server does not read stays in the node."""
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
    end_beside_a_paused_server(tmp_path, a_kernel_that_takes_little, WITHIN)


def test_a_node_that_does_not_bound_the_closing_of_its_connection_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="did not stop"):
        end_beside_a_paused_server(tmp_path, closing_is_not_bounded, CERTAIN)


def end_beside_a_paused_server(folder: Path, setting: Callable[[], None], within: float) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(folder / "nats"))
        node = stack.enter_context(start_sabotaged(folder / "node", setting, "--engine", nats.url, log_replicas=1))
        assert b" 201 " in stack.enter_context(publish_and_go(node)).recv(100)
        nats.servers[0].pause()
        for _ in range(PUBLISHES):
            stack.enter_context(publish_and_go(node))
        wait_until(lambda: unsent_to(nats.servers[0].port))

        assert node.stop(within) == 0


def unsent_to(port: int) -> bool:
    """Whether the kernel holds bytes that the server at *port* does not take (the fifth column of its table)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[2].split(":")[1], 16) == port and int(row[4].split(":")[0], 16) for row in rows)


def publish_and_go(node: RunningServer) -> socket.socket:
    """Publish, without waiting for the answer."""
    publisher = socket.create_connection(("127.0.0.1", node.port))
    head = (
        f"POST /v1/publish?stream=/much HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {node.admin_token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    publisher.sendall(head.encode() + BODY)
    return publisher
