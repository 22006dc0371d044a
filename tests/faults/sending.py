"""Sends generated inputs over raw sockets, many to a connection, and counts what was answered."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from tests.faults.generating import Input, framed

PATIENCE = 20.0
LEAVE_AFTER = 0.02  # a live answer is left when nothing has come for so long
ALLOWED = {501, 503, 505, 507}  # unknown method, busy, unknown version, full: answers with a reason
BROKEN = (1011).to_bytes(2, "big")  # a close that says "the server failed", and not at what
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)


class Sent:
    """What became of the inputs."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()  # by status; 0: closed without a word, 1: left while it was open
        self.frames = 0  # that a WebSocket took; of those before a close only the one it closed at

    @property
    def count(self) -> int:
        return sum(self.answers.values()) + self.frames

    def note(self, status: int, data: bytes) -> None:
        assert status < 500 or status in ALLOWED, (status, data[:2_000])
        self.answers[status] += 1


class Line:
    """One connection that is read answer by answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._buffer = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes, *, last: bool = False) -> None:
        with suppress(ConnectionError):  # it was closed at something before: reading says so
            self._socket.sendall(data)
            if last:
                self._socket.shutdown(socket.SHUT_WR)

    def answer(self, *, head_only: bool = False) -> int:
        """The status of the next answer, which is read to its end; 0 if the connection is closed instead."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            return 0
        status = int(head.split(b" ", 2)[1])
        if status < 200 and status != 101:
            return self.answer(head_only=head_only)
        if not head_only and status not in (101, 204, 304):
            self._skip_body(head)
        return status

    def _skip_body(self, head: bytes) -> None:
        if found := _LENGTH.search(head):
            self.take(int(found[1]))
        elif b"transfer-encoding: chunked" in head.lower():
            while (line := self._until(b"\r\n")) and (size := int(line, 16)):
                self.take(size + 2)
            self._until(b"\r\n")
        else:
            while self._more():
                self._buffer = b""

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._more():
                return None
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not self._more():
                return None
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _more(self) -> bool:
        try:
            piece = self._socket.recv(262_144)
        except ConnectionError:
            return False
        self._buffer += piece
        return bool(piece)

    def impatient(self) -> None:
        self._socket.settimeout(LEAVE_AFTER)


def send_together(port: int, batch: list[Input], sent: Sent) -> None:
    """Requests one after the other on one connection. After one that ends it the others are not counted."""
    with Line(port) as line:
        line.send(b"".join(one.data for one in batch))
        for one in batch:
            try:
                status = line.answer()
            except TimeoutError:
                raise AssertionError(f"no answer within {PATIENCE:g} s: {one.data[:2_000]!r}") from None
            if not status:
                return
            sent.note(status, one.data)


def send_alone(port: int, one: Input, sent: Sent) -> None:
    """One input on a connection of its own, which may be anything."""
    with Line(port) as line:
        line.send(one.data, last=not one.live)
        if one.live:
            line.impatient()
        try:
            sent.note(line.answer(head_only=True), one.data)
        except TimeoutError:
            assert one.live, f"no answer within {PATIENCE:g} s: {one.data[:2_000]!r}"
            sent.note(1, one.data)


def send_frames(port: int, target: str, frames: Iterable[bytes], sent: Sent, headers: bytes = b"") -> None:
    """Frames on one WebSocket; then a ping, whose answer says that all of them were taken."""
    frames = list(frames)
    with Line(port) as line:
        line.send(HANDSHAKE % (target.encode(), headers))
        status = line.answer()
        assert status == 101, (status, target)
        line.send(b"".join(frames) + framed(0x89, b"at the end", b"mask"), last=True)
        try:
            taken, close = _until_pong_or_close(line)
        except TimeoutError:
            raise AssertionError(f"neither a pong nor a close within {PATIENCE:g} s: {frames!r}"[:5_000]) from None
        assert close != BROKEN, frames
        sent.frames += len(frames) if taken else 1


def _until_pong_or_close(line: Line) -> tuple[bool, bytes]:
    """Whether the pong came, and what the close frame says that came instead."""
    while head := line.take(2):
        size = head[1] & 0x7F
        if size > 125:
            size = int.from_bytes(line.take(2 if size == 126 else 8) or b"", "big")
        payload = line.take(size) or b""
        if head[0] == 0x88:
            return False, payload
        if head[0] == 0x8A and payload == b"at the end":
            return True, b""
    return False, b""
