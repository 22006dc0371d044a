"""A client of sps for tests: a raw socket, so that chunks are seen as they came."""

from __future__ import annotations

import json
import socket
from itertools import count
from typing import Any
from urllib.parse import urlencode

from penstock.testing import RunningServer
from tests.api.client import Reply, ask

_users = count(1000)


def new_user() -> str:
    """A user that no other test has."""
    return str(next(_users))


def token(server: RunningServer, uid: str, subscribe: tuple[str, ...] = ("/rooms/*",), ttl: int = 600) -> str:
    """The token of a user who has logged in."""
    body = json.dumps({"uid": uid, "ttl": ttl, "subscribe": subscribe}).encode()
    answer = ask(server, "POST", "/v1/tokens", body)
    assert answer.status == 201, answer
    made: str = answer.json["token"]
    return made


def notify(
    server: RunningServer, target: str, body: bytes = b"x", headers: dict[str, str] | None = None, **params: str
) -> Reply:
    """Publish to `user`, `room` or `all`."""
    return ask(server, "POST", f"/notify_to_{target}", body, headers, **params)


def notify_id(server: RunningServer, target: str, body: bytes = b"x", **params: str) -> int:
    """Publish, and return the event's id."""
    answer = notify(server, target, body, **params)
    assert answer.status == 200, answer
    id: int = answer.json["id"]
    return id


class Wire:
    """An open subscribe. Without `uid` it is a new user's; without `token` the admin's."""

    def __init__(
        self,
        server: RunningServer,
        headers: dict[str, str] | None = None,
        token: str | None = "",
        version: str = "1.1",
        method: str = "GET",
        **params: object,
    ) -> None:
        self.uid = str(params.setdefault("uid", new_user()))
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        self._file = self._socket.makefile("rb")
        fields = {"Host": "test", **(headers or {})}
        if token is not None:
            fields["Authorization"] = f"Bearer {token or server.admin_token}"
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._socket.sendall(f"{method} /subscribe?{urlencode(params)} HTTP/{version}\r\n{head}\r\n".encode())
        self.status = int(self._file.readline().split()[1])
        self.headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self.chunked = self.headers.get("transfer-encoding") == "chunked"

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def chunk(self) -> bytes:
        """The next chunk; empty at the end of the answer."""
        size = int(self._file.readline() or b"0", 16)
        data = self._file.read(size)
        if size:
            assert self._file.readline() == b"\r\n"
        return data

    def line(self) -> Any:
        """The next line that is not blank, which must be a whole chunk; None at the end."""
        while (data := self.chunk() if self.chunked else self._file.readline()) == b"\r\n":
            pass
        assert not data or (data.endswith(b"\n") and data.count(b"\n") == 1), data
        return json.loads(data) if data else None

    def lines(self, count: int) -> list[Any]:
        return [self.line() for _ in range(count)]

    def opened(self) -> Wire:
        """Read the first line, which says that the wire is open."""
        assert self.line()["event"] == "open"
        return self

    def rest(self) -> list[Any]:
        """Everything to the end of the answer."""
        lines = []
        while (line := self.line()) is not None:
            lines.append(line)
        return lines

    def hung_up(self) -> bool:
        """Whether the server has closed the connection after the end of the answer."""
        assert self._file.readline() == b"\r\n"
        return self._file.read(1) == b""

    def data(self, count: int) -> list[Any]:
        """What the next events carry."""
        return [line["data"] for line in self.lines(count)]
