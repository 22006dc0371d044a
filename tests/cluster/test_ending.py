"""A node ends when it is told to, though its NATS server hangs.

What its connection does then, and that it would not end without its guards, is in
tests/engines/test_jetstream_connection.py: a node bounds what it has in flight, and its pings find the server gone
before it comes to close, so only the whole of it is looked at here.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from penstock.testing import RunningServer, start_nats, start_server

BODY = b"x" * (900 << 10)
PUBLISHES = 24  # together more than the kernel takes for a server that does not read
WITHIN = 30  # a node waits some seconds for what it has begun


def test_a_node_ends_though_its_nats_server_reads_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(tmp_path / "nats"))
        node = stack.enter_context(start_server(tmp_path / "node", "--engine", nats.url, log_replicas=1))
        assert b" 201 " in stack.enter_context(publish_and_go(node)).recv(100)
        nats.servers[0].pause()
        for _ in range(PUBLISHES):
            stack.enter_context(publish_and_go(node))

        assert node.stop(WITHIN) == 0


def publish_and_go(node: RunningServer) -> socket.socket:
    """Publish, without waiting for the answer."""
    publisher = socket.create_connection(("127.0.0.1", node.port))
    head = (
        f"POST /v1/publish?stream=/much HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {node.admin_token}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    publisher.sendall(head.encode() + BODY)
    return publisher
