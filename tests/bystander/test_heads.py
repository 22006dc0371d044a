"""Heads of requests: what one peer says in his reaches nobody else's."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import httptools
import pytest

from penstock.testing import RunningServer
from penstock.wire import http_requests
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

ROUNDS = 15
HOSTILE = [
    (b"GET /health HTTP/1.1", b"Proxy-Connection: close"),
    (b"GET /health HTTP/1.1", b"Connection: close", b"Connection: keep-alive"),
    (b"POST /health HTTP/1.1", b"Content-Length: 5"),
    (b"POST /health HTTP/1.1", b"Transfer-Encoding: chunked"),
    (b"GET /health HTTP/1.1", b"Connection: upgrade", b"Upgrade: h2c"),
    (b"CONNECT a:443 HTTP/1.1",),
    (b"PRI * HTTP/2.0",),
    (b"GET /health HTTP/1.0", b"Connection: keep-alive"),
]


def send_heads(server: RunningServer) -> None:
    """Send each of them as a stranger, new to the byte, and hear the answer's first bytes."""
    for number in range(ROUNDS):
        for first, *fields in HOSTILE:
            lines = [first, b"Host: a", *fields, b"X-Number: %d" % number, b"", b""]
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
                peer.sendall(b"\r\n".join(lines))
                assert peer.recv(8) in (b"HTTP/1.1", b"")


def one_parser_for_all() -> None:
    """Every head goes through the same llhttp parser, with what it remembers of the last one."""
    fields = http_requests._HeadFields()
    used = httptools.HttpRequestParser(fields)

    def read(raw: bytes) -> list[tuple[bytes, bytes]]:
        fields.headers = []
        try:
            used.feed_data(raw)
        except httptools.HttpParserError as error:
            raise http_requests.PeerError(400, str(error)) from None
        return fields.headers

    http_requests._fields = read


@pytest.mark.parametrize("sabotage", [None, one_parser_for_all])
def test_a_head_of_one_peer_spoils_no_other(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, beside(server) as bystander:
        send_heads(server)

    if sabotage is None:
        bystander.noticed_nothing()
    else:
        with pytest.raises(AssertionError):
            bystander.noticed_nothing()
