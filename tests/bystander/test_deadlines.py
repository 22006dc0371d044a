"""Deadlines: one that fails holds up nobody's. That many are called in slices: tests/http/test_timers.py."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.http import timers
from penstock.http.connection import Connection
from penstock.testing import RunningServer
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

LATE = 20
HEAD_SECONDS = 1
SURE, SOON = 60, 4  # for refusals that come, and for those that do not


def begin_heads(server: RunningServer, within: float) -> int:
    """As a stranger begin a head on several connections at once, and say no more; how many are told so."""
    with ExitStack() as stack:
        peers = {stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(LATE)}
        for peer in peers:
            peer.sendall(b"G")
        end = time.monotonic() + within
        while len(peers) > 1 and (left := end - time.monotonic()) > 0:
            for peer in select.select(peers, [], [], left)[0]:
                assert peer.recv(12) == b"HTTP/1.1 408"
                peers.remove(peer)
        return LATE - len(peers)


def the_first_fails() -> None:
    """A fault of our own: the first deadline of a connection raises."""
    calls, expired = itertools.count(), Connection.expired

    def fails_once(self: Connection) -> None:
        if not next(calls):
            raise ZeroDivisionError
        expired(self)

    Connection.expired = fails_once  # type: ignore[method-assign]


def the_first_fails_and_nothing_guards_the_others() -> None:
    the_first_fails()
    timers.Wheel._call = lambda _, timed: timed.expired()  # type: ignore[method-assign]


@pytest.mark.parametrize("sabotage", [the_first_fails, the_first_fails_and_nothing_guards_the_others])
def test_a_deadline_that_fails_keeps_nobody_from_his(tmp_path: Path, sabotage: Callable[[], None]) -> None:
    settings = {"server_head_timeout": HEAD_SECONDS}
    with start_sabotaged(tmp_path / "data", sabotage, **settings) as server, beside(server) as bystander:
        told = begin_heads(server, SURE if sabotage is the_first_fails else SOON)

    bystander.noticed_nothing()
    assert (told == LATE - 1) == (sabotage is the_first_fails)
