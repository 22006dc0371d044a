"""Heads of requests: what one peer says in his reaches nobody else's, and many of them hold up nobody."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httptools
import pytest

from penstock.http import connection
from penstock.testing import RunningServer
from penstock.wire import http_requests
from tests.bystander.hostile import standing_still
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

ROUNDS = 15
PEERS, AHEAD = 120, 1_500
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


def everything_in_one_turn() -> None:
    """What a peer has sent ahead is answered without a pause."""
    connection.REQUESTS_PER_TURN = 1 << 40  # type: ignore[misc]


def send_ahead(server: RunningServer) -> None:
    """Strangers send many requests that are answered at once."""
    with ExitStack() as stack:
        address = ("127.0.0.1", server.port)
        peers = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(PEERS)]
        with standing_still(server):
            for peer in peers:
                peer.sendall(b"GET /no HTTP/1.1\r\nHost: a\r\n\r\n" * AHEAD)
                peer.shutdown(socket.SHUT_WR)
        for peer in peers:
            with peer.makefile("rb") as answers:
                assert answers.read().count(b"HTTP/1.1 404 ") == AHEAD


@pytest.mark.parametrize("sabotage", [None, everything_in_one_turn])
def test_requests_that_are_sent_ahead_and_answered_at_once_hold_up_nobody(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, beside(server) as bystander:
        send_ahead(server)

    if sabotage is None:
        bystander.noticed_nothing()
    else:
        with pytest.raises(AssertionError):
            bystander.noticed_nothing()
