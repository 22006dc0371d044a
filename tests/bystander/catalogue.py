"""Runs a list of hostile behaviours at a door, beside a client of that door who does as he should.

A list has functions that take the server and do something bad to it. An innocent one is a context manager that gives
a function to be called between any two of them: it has something published to him, and he gets it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from penstock.testing import RunningServer
from tests.bystander.watching import beside
from tests.doors.trickle_client import Raw, request

Attack = Callable[[RunningServer], None]
Innocent = Callable[[RunningServer], AbstractContextManager[Callable[[int], None]]]


def run(server: RunningServer, innocent: Innocent, attacks: Sequence[Attack]) -> None:
    """All *attacks*, one after the other. Neither the innocent one nor the bystander notices any of them."""
    with beside(server) as bystander, innocent(server) as check:
        check(0)
        for turn, attack in enumerate(attacks, 1):
            attack(server)
            check(turn)
    bystander.noticed_nothing()
    assert "Traceback" not in server.log_text()


def sent(server: RunningServer, *requests: bytes, reset: bool = False) -> None:
    """Bytes on a connection of their own, which is left without reading an answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            for one in requests:
                connection.sendall(one)


def answered(server: RunningServer, *requests: bytes) -> list[int]:
    """The status of each, none of which may be the server's own fault."""
    statuses = []
    for one in requests:
        with Raw(server, one) as peer:
            statuses.append(peer.head())
    assert 500 not in statuses, statuses
    return statuses


def plain(server: RunningServer, method: str, target: str, **fields: str) -> bytes:
    """A request without a body."""
    return request(server, method, target, {"Content-Length": "0", **fields})
