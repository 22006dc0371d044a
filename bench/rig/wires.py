"""Many open responses in one process, as cheap as Python can hold them: sockets and one epoll.

    python -m bench.rig.wires PORT COUNT REQUESTS [STATUS] [tls] [until=HEX] [returns] [from=ADDRESS]

Opens them one after the other, with the requests in turn, each to be answered with STATUS (200), or with something
that has the bytes of `until` in it, and says `{"open": COUNT}`. Then `total N` is answered when N marks have arrived
over all wires since the start, with how many of them came on the wire that got the fewest. Wires that `returns` are
opened again when they are closed; then `settled S` is answered when some were, and nothing of the kind has happened for
S seconds.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import MARK, load

_PATIENCE = 60  # seconds for one connection to be answered


class Wires:
    """Counts what arrives."""

    def __init__(self, reopen: Callable[[], None] | None = None, source: str = "") -> None:
        self._reopen, self._source = reopen, (source, 0) if source else None
        self._returned, self._last, self._settle = 0, 0.0, 0.0
        self._sockets: dict[int, socket.socket] = {}
        self._seen: dict[int, int] = {}
        self._total = self._wanted = self._lost = 0

    def open(self, port: int, request: bytes, status: str, until: bytes = b"", *, tls: bool) -> None:
        """Connect, ask and read the beginning of the answer: its head, or all up to the bytes of *until*."""
        wire: socket.socket = socket.create_connection(("127.0.0.1", port), _PATIENCE, self._source)
        if tls:
            wire = _trusting().wrap_socket(wire)
        wire.sendall(request)
        received = b""
        while (until or b"\r\n\r\n") not in received:
            piece = wire.recv(4096)
            if not piece:
                raise SystemExit(f"wire {len(self._sockets)} was closed after {received!r}")
            received += piece
        if not until and received[9:12] != status.encode():
            raise SystemExit(f"wire {len(self._sockets)} was answered with {received!r}")
        self._sockets[wire.fileno()] = wire
        self._seen[wire.fileno()] = 0

    def run(self) -> None:
        """Receive for ever; commands come on standard input."""
        poll, buffer = select.epoll(), bytearray(256 * 1024)
        for fd in (sys.stdin.fileno(), *self._sockets):
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll(self._settle or None):
                if fd == sys.stdin.fileno():
                    self._obey(sys.stdin.readline().split())
                elif size := self._sockets[fd].recv_into(buffer):
                    count = buffer.count(MARK, 0, size)
                    self._seen[fd] += count
                    self._total += count
                else:
                    poll.unregister(fd)
                    if self._reopen is None:
                        self._lost += 1
                    else:
                        poll.register(self._return(fd), select.EPOLLIN)
            self._answer_if_there()

    def _return(self, closed: int) -> int:
        """Open a wire again that was closed."""
        self._sockets.pop(closed).close()
        seen = self._seen.pop(closed)
        while True:
            with suppress(OSError, SystemExit):  # the next worker to take it may be just about to end, too
                self._reopen()  # type: ignore[misc]
                break
        fd = next(reversed(self._sockets))
        self._seen[fd] = seen
        self._returned, self._last = self._returned + 1, time.monotonic()
        return fd

    def _obey(self, command: list[str]) -> None:
        if not command:
            raise SystemExit  # whoever gave the commands is gone
        if command[0] == "settled":
            self._settle = float(command[1])
        else:
            self._wanted = int(command[1])

    def _answer_if_there(self) -> None:
        if self._wanted and (self._total >= self._wanted or self._lost):
            reply(total=self._total, fewest=min(self._seen.values()), lost=self._lost)
            self._wanted = 0
        if self._settle and self._returned and time.monotonic() - self._last > self._settle:
            reply(returned=self._returned, last=self._last)
            self._settle, self._returned = 0.0, 0


def _trusting() -> ssl.SSLContext:
    """The server's certificate was made a moment ago, by us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def main(port: str, count: str, requests: str, *options: str) -> None:
    asked = load(Path(requests))
    status = next(filter(str.isdigit, options), "200")
    source = next((option.removeprefix("from=") for option in options if option.startswith("from=")), "")
    until = bytes.fromhex(next((one.removeprefix("until=") for one in options if one.startswith("until=")), ""))

    def reopen() -> None:
        wires.open(int(port), asked[0], status, tls=False)

    wires = Wires(reopen if "returns" in options else None, source)
    for number in range(int(count)):
        wires.open(int(port), asked[number % len(asked)], status, until, tls="tls" in options)
    reply(open=int(count))
    wires.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
