"""Something that greets like a NATS server and then behaves badly; and who still has a socket to it."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

INFO = b'INFO {"server_id":"x","version":"2.15.0","headers":true,"max_payload":67108864,"proto":1}\r\n'

BEHAVIOURS = {
    "silent": "takes a connection and says nothing",
    "greeting": "says INFO, and nothing more",
    "polite": "answers every PING",
    "deaf": "answers the first PING, then reads nothing more",
    "fickle": "answers the first PING, then closes",
    "refusing": "answers every PING, the first one with an error besides",
    "forbidding": "answers every PING, the first one with an error about one subject besides",
    "half": "answers the first PING, then closes its own half and reads nothing more; says nothing to who comes later",
}

ERRORS = {
    "refusing": b"-ERR 'Something Nobody Has Heard Of'\r\n",
    "forbidding": b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n",
}


class NatsPeer:
    """It behaves to all connections in the same way, each in a thread of its own."""

    def __init__(self, behaviour: str) -> None:
        assert behaviour in BEHAVIOURS
        self._behaviour, self._ended = behaviour, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.accepted, self._said = 0, False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def end(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self.accepted += 1
                self._threads.append(threading.Thread(target=self._serve, args=(accepted,)))
                self._threads[-1].start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            accepted.settimeout(0.05)
            if self._behaviour == "silent" or (self._behaviour == "half" and self.accepted > 1):
                self._ended.wait()
                return
            accepted.sendall(INFO)
            for _ in self._pings(accepted):
                if self._behaviour == "greeting":
                    self._ended.wait()
                    return
                accepted.sendall(b"PONG\r\n")
                if self.accepted == 1 and not self._said:
                    self._said = True
                    accepted.sendall(ERRORS.get(self._behaviour, b""))
                if self._behaviour == "half":
                    accepted.shutdown(socket.SHUT_WR)
                if self._behaviour in ("deaf", "half"):
                    self._ended.wait()
                if self._behaviour not in ("polite", *ERRORS):
                    return

    def _pings(self, accepted: socket.socket) -> Iterator[None]:
        tail = b""
        while not self._ended.is_set():
            try:
                received = accepted.recv(1 << 20)
            except TimeoutError:
                continue
            if not received:
                return
            yield from (None for _ in range((tail + received).count(b"PING\r\n")))
            tail = received[-5:]


@contextmanager
def nats_peer(behaviour: str) -> Iterator[NatsPeer]:
    peer = NatsPeer(behaviour)
    try:
        yield peer
    finally:
        peer.end()


def sockets_to(port: int) -> int:
    """How many open sockets of this process lead to *port*."""
    return sum(_leads_to(int(entry.name), port) for entry in Path("/proc/self/fd").iterdir())


def _leads_to(number: int, port: int) -> bool:
    with suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            with socket.socket(fileno=os.dup(number)) as found:
                return bool(found.getpeername()[1:2] == (port,))
    return False
