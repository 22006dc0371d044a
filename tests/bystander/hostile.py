"""What a hostile peer has: connections that it keeps, cuts or leaves half said, and a token with few rights."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from penstock.api.auth import open_keys
from penstock.testing import RunningServer
from tests.api.client import Reply, ask
from tests.faults.sending import Line

FINE = {501, 503, 505}  # of the answers from 500 on: unknown method, busy, unknown version


@contextmanager
def standing_still(server: RunningServer) -> Iterator[None]:
    """Have the server find all that is sent in the block at once, in one turn of its loop."""
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


class Hostile:
    """One who means harm to the other clients of *server*. What it holds open is closed when the block ends."""

    def __init__(self, server: RunningServer, streams: str, *grants: str) -> None:
        self.server, self.port = server, server.port
        patterns = (f"{streams}/>", *((f"/_sub{streams}/>",) if "pushers" in grants else ()))
        self.token = open_keys(server.data).issue("mallory", publish=patterns, subscribe=patterns, grants=grants)
        self._held: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for held in self._held:
            held.close()

    def head(self, method: str, target: str, *headers: str) -> bytes:
        """The head of a request with the token, and its last empty line."""
        lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.token}", *headers]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    def request(self, method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
        """A whole request."""
        return self.head(method, target, f"Content-Length: {len(body)}", *headers) + body

    def hold(self, data: bytes) -> socket.socket:
        """Send *data* on a new connection and keep it, without reading."""
        held = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        held.sendall(data)
        self._held.append(held)
        return held

    def cut(self, data: bytes) -> None:
        """Send *data* on a new connection and reset it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as one:
            one.sendall(data)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def say(self, data: bytes, *, answers: int = 1) -> list[int]:
        """Send *data* and nothing more on a new connection; the statuses that come back. None is a failure of ours."""
        with Line(self.port) as line:
            line.send(data, last=True)
            found = [line.answer(head_only=answers == 1) for _ in range(answers)]
        assert all(status < 500 or status in FINE for status in found), (found, data[:300])
        return found

    def ask(self, method: str, path: str, body: bytes | None = None, **params: object) -> Reply:
        """Ask as a client would; an answer that is a failure of ours is one of this test."""
        reply = ask(self.server, method, path, body, token=self.token, **params)
        assert reply.status < 500 or reply.status in FINE, (reply.status, method, path, reply.body[:300])
        return reply

    def post(self, path: str, **fields: object) -> Reply:
        """Post one JSON object."""
        return self.ask("POST", path, json.dumps(fields).encode())
