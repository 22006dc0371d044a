"""A push service that does as it is told, and the user agent behind it: for tests of the sender."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.testing import RunningServer
from penstock.wire.webcrypto import decrypt, encode64, load_private, point_of
from tests.api.client import Reply, ask

_numbers = itertools.count(1)


class Browser:
    """The keys of one subscription."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.key = load_private(number.to_bytes(32))
        self.auth = number.to_bytes(16)

    @property
    def keys(self) -> dict[str, str]:
        return {"p256dh": encode64(point_of(self.key)), "auth": encode64(self.auth)}

    def subscription(self, endpoint: str) -> dict[str, Any]:
        """As `JSON.stringify` gives it."""
        return {"endpoint": endpoint, "expirationTime": None, "keys": self.keys}

    def read(self, body: bytes) -> bytes:
        return decrypt(body, private_key=self.key, auth=self.auth)


@dataclass(frozen=True, slots=True)
class Push:
    """One request that came."""

    path: str
    headers: dict[str, str]
    body: bytes


Decide = Callable[[Push], int | tuple[int, dict[str, str]]]


class PushService:
    """An HTTP endpoint whose answers a function decides; what came in is kept, and what it took."""

    def __init__(self, decide: Decide, port: int = 0) -> None:
        self.pushes: list[Push] = []
        self.taken: list[Push] = []
        self.decide = decide
        self._connections: set[socket.socket] = set()
        service = self

        class Endpoint(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                service._connections.add(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                push = Push(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                service.pushes.append(push)
                decided = service.decide(push)
                status, headers = decided if isinstance(decided, tuple) else (decided, {})
                if status < 300:
                    service.taken.append(push)
                self.send_response(status)
                for name, value in {"Location": "/m/1", "Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Endpoint)
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def endpoint(self, name: str) -> str:
        return f"{self.origin}/push/{name}"

    def close(self) -> None:
        """Take no more, also not over connections that are open."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def push_service(decide: Decide = lambda push: 201, port: int = 0) -> Iterator[PushService]:
    service = PushService(decide, port)
    try:
        yield service
    finally:
        service.close()


def ask_sender(server: RunningServer, subscription: dict[str, Any], token: str = "", **fields: object) -> Reply:
    """`POST /v1/webpush`; private addresses are allowed unless something else is said."""
    body = {"subscription": subscription, "allow_private": True, **fields}
    return ask(server, "POST", "/v1/webpush", json.dumps(body).encode(), token=token)


def bind(server: RunningServer, subscription: dict[str, Any], stream: str, **fields: object) -> str:
    reply = ask_sender(server, subscription, stream=stream, **fields)
    assert reply.status == 201, reply.body
    id: str = reply.json["id"]
    return id


def binding(server: RunningServer, id: str) -> dict[str, Any]:
    shown: dict[str, Any] = ask(server, "GET", f"/v1/webpush/{id}").json
    return shown
