"""Many open responses in one process, as cheap as Python can hold them: sockets and one epoll.

    python -m bench.rig.wires PORT COUNT REQUESTS [STATUS] [tls]

Opens them one after the other, with the requests in turn, each to be answered with STATUS (200), and
says `{"open": COUNT}`. Then `total N` is answered when N marks have arrived over all wires since the
start, with how many of them came on the wire that got the fewest.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import MARK, load

_PATIENCE = 60  # seconds for one connection to be answered


class Wires:
    """Counts what arrives."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._seen: dict[int, int] = {}
        self._total = self._wanted = self._lost = 0

    def open(self, port: int, request: bytes, status: str, *, tls: bool) -> None:
        """Connect, ask and read the head of the answer."""
        wire: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        if tls:
            wire = _trusting().wrap_socket(wire)
        wire.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            piece = wire.recv(4096)
            if not piece:
                raise SystemExit(f"wire {len(self._sockets)} was closed after {received!r}")
            received += piece
        if received[9:12] != status.encode():
            raise SystemExit(f"wire {len(self._sockets)} was answered with {received!r}")
        self._sockets[wire.fileno()] = wire
        self._seen[wire.fileno()] = 0

    def run(self) -> None:
        """Receive for ever; commands come on standard input."""
        poll, buffer = select.epoll(), bytearray(256 * 1024)
        for fd in (sys.stdin.fileno(), *self._sockets):
            poll.register(fd, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == sys.stdin.fileno():
                    self._obey(sys.stdin.readline().split())
                elif size := self._sockets[fd].recv_into(buffer):
                    count = buffer.count(MARK, 0, size)
                    self._seen[fd] += count
                    self._total += count
                else:
                    poll.unregister(fd)
                    self._lost += 1
            self._answer_if_there()

    def _obey(self, command: list[str]) -> None:
        if not command:
            raise SystemExit  # whoever gave the commands is gone
        self._wanted = int(command[1])

    def _answer_if_there(self) -> None:
        if self._wanted and (self._total >= self._wanted or self._lost):
            reply(total=self._total, fewest=min(self._seen.values()), lost=self._lost)
            self._wanted = 0


def _trusting() -> ssl.SSLContext:
    """The server's certificate was made a moment ago, by us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def main(port: str, count: str, requests: str, *options: str) -> None:
    asked = load(Path(requests))
    wires, status = Wires(), next(filter(str.isdigit, options), "200")
    for number in range(int(count)):
        wires.open(int(port), asked[number % len(asked)], status, tls="tls" in options)
    reply(open=int(count))
    wires.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
