"""Many clients that come back at the same moment, each for what it has missed.

    python -m bench.rig.storm PORT REQUESTS EVENTS

Answers `{"ready"}`; at the next line it connects once for each request, all at once, and answers when every
client has received EVENTS marks: `{"clients", "seconds", "p50", "p99"}`, in seconds from the beginning.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
import time
from pathlib import Path

from bench.rig.child import reply
from bench.rig.requests import MARK, load

_AT_ONCE = 1000  # connections that are being made; a listener's backlog holds a few thousand


class Storm:
    """All the clients, on one epoll."""

    def __init__(self, port: int, requests: list[bytes], events: int) -> None:
        self._address, self._events = ("127.0.0.1", port), events
        self._waiting = requests[::-1]
        self._poll = select.epoll()
        self._connecting: dict[int, tuple[socket.socket, bytes]] = {}
        self._reading: dict[int, socket.socket] = {}
        self._missing: dict[int, int] = {}
        self.caught_up: list[float] = []

    def run(self) -> None:
        """Return when all have caught up."""
        began, total, buffer = time.perf_counter(), len(self._waiting), bytearray(256 * 1024)
        while len(self.caught_up) < total:
            while self._waiting and len(self._connecting) < _AT_ONCE:
                self._connect(self._waiting.pop())
            for fd, _ in self._poll.poll():
                if fd in self._connecting:
                    self._ask(fd)
                elif self._received(fd, buffer):
                    self.caught_up.append(time.perf_counter() - began)

    def _connect(self, request: bytes) -> None:
        client = socket.socket()
        client.setblocking(False)
        if client.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            raise SystemExit("storm: a client could not connect")
        self._connecting[client.fileno()] = (client, request)
        self._poll.register(client.fileno(), select.EPOLLOUT)

    def _ask(self, fd: int) -> None:
        client, request = self._connecting.pop(fd)
        client.send(request)
        self._reading[fd], self._missing[fd] = client, self._events
        self._poll.modify(fd, select.EPOLLIN)

    def _received(self, fd: int, buffer: bytearray) -> bool:
        """Whether that client has everything with what it receives now."""
        size = self._reading[fd].recv_into(buffer)
        if not size:
            raise SystemExit("storm: a client was cut")
        before = self._missing[fd]
        self._missing[fd] -= buffer.count(MARK, 0, size)
        return before > 0 >= self._missing[fd]


def main(port: str, requests: str, events: str) -> None:
    storm = Storm(int(port), load(Path(requests)), int(events))
    reply(ready=1)
    sys.stdin.readline()
    storm.run()
    times = sorted(storm.caught_up)
    reply(clients=len(times), seconds=times[-1], p50=times[len(times) // 2], p99=times[len(times) * 99 // 100])
    sys.stdin.readline()  # stay until told to go: an end of all wires would be measured with them


if __name__ == "__main__":
    main(*sys.argv[1:])
