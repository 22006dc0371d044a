"""WebSockets: frames that carry nothing, and questions whose answers nobody reads.

The servers keep the log in memory: what the loop does for others while an answer waits for the disk is no harm, but
would be counted as such.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.http import receiving, websocket
from penstock.testing import RunningServer
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

MIB = 1024 * 1024
MASK = b"\0\0\0\0"
BEGIN, EMPTY = b"\x01\x80" + MASK, b"\x00\x80" + MASK  # a text message in fragments, and one that adds nothing to it
PONG = b"\x8a\x80" + MASK
CLOSE = b"\x88\x80" + MASK
PING = b"\x89\xfd" + MASK + b"x" * 125
MOST_BYTES = 12 * MIB  # that a peer gets rid of which does not read, the kernel's buffers included


@contextmanager
def opened(server: RunningServer) -> Iterator[socket.socket]:
    """A WebSocket of a stranger at the door of Web Push."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(
            b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert peer.recv(1000).startswith(b"HTTP/1.1 101")
        yield peer


stall_seconds = 1.0  # after which a server that takes no byte is taken for one that will take none


def send_until_closed(peer: socket.socket, again: bytes, most: int) -> int:
    """How many bytes it took before the server would have no more."""
    sent = 0
    peer.settimeout(stall_seconds)
    try:
        while sent < most:
            sent += peer.send(again)
    except OSError:
        pass
    return sent


def send_empty_frames(server: RunningServer) -> None:
    """A message that goes on and on with nothing in it is closed, for a reason."""
    with opened(server) as peer:
        peer.sendall(BEGIN + EMPTY * (MIB // 8))
        said = peer.recv(1000)
        assert said[:1] == b"\x88", said
        assert said[2:4] == (1008).to_bytes(2, "big"), said


def ping_without_reading(server: RunningServer) -> None:
    with opened(server) as peer:
        assert send_until_closed(peer, PING * 2000, 4 * MOST_BYTES) < MOST_BYTES


def pong_unasked(server: RunningServer) -> None:
    """Frames that nobody asked for, as small as can be."""
    with opened(server) as peer:
        peer.sendall(PONG * (MIB // 2) + CLOSE)
        assert peer.recv(1000)[:1] == b"\x88"


def fragments_without_end() -> None:
    """A message may have any number of frames."""
    websocket.FRAGMENTS = 1 << 40


def frames_in_one_go() -> None:
    """All frames that came are taken in one turn."""
    receiving.FRAME_SLICE = 1 << 40


def pings_are_always_read() -> None:
    """A peer that does not read is read from all the same."""
    receiving.INPUT_QUEUE_BYTES = 1 << 40


ATTACKS = {
    send_empty_frames: fragments_without_end,
    ping_without_reading: pings_are_always_read,
    pong_unasked: frames_in_one_go,
}


def beside_attacks(data: Path, sabotage: Callable[[], None] | None, *attacks: Callable[[RunningServer], None]) -> None:
    with start_sabotaged(data, sabotage, log_engine="memory") as server:
        with beside(server) as bystander:
            for attack in attacks:
                attack(server)
        bystander.noticed_nothing()


def test_frames_that_carry_nothing_cost_the_others_nothing(tmp_path: Path) -> None:
    beside_attacks(tmp_path / "data", None, *ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS)
def test_without_its_guard_each_is_noticed(
    tmp_path: Path, attack: Callable[[RunningServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "stall_seconds", 20)  # it takes all, on a busy machine with pauses
    with pytest.raises((AssertionError, TimeoutError)):
        beside_attacks(tmp_path / "data", ATTACKS[attack], attack)
