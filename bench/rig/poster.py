"""One event at a time, from the process that measures."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self


class PostRefused(Exception):
    """An event was not taken."""


class Poster:
    """A keep-alive connection that posts the same request again and again."""

    def __init__(self, port: int, request: bytes) -> None:
        self._request = request
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(self) -> Any:
        """Post once; return what the answer says, if it is JSON."""
        self._socket.sendall(self._request)
        answer = self._socket.recv(65_536)
        if answer[9:12] not in (b"201", b"202"):
            raise PostRefused(f"answered with {answer[:300]!r}")
        body = answer.partition(b"\r\n\r\n")[2]
        return json.loads(body) if body.startswith(b"{") else None
