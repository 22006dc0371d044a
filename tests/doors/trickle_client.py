"""A client of Trickle for tests: raw sockets, so that every byte and every pause is the test's own."""

from __future__ import annotations

import socket
from itertools import count
from typing import Any
from urllib.parse import quote

from penstock.testing import RunningServer, wait_until
from tests.api.client import Reply, ask

BASE = "/trickle/"
_names = count()


def new_channel(prefix: str = "ch") -> str:
    """A name that no other test has."""
    return f"{prefix}{next(_names)}"


def path(channel: str, seq: object | None = None) -> str:
    return BASE + quote(channel, safe="~") + ("" if seq is None else f"/{seq}")


def create(
    server: RunningServer, channel: str, headers: dict[str, str] | None = None, token: str | None = "", **params: object
) -> Reply:
    return ask(server, "POST", path(channel), b"", headers, token, **params)


def made(server: RunningServer, prefix: str = "ch", **params: object) -> str:
    """A new channel."""
    channel = new_channel(prefix)
    assert create(server, channel, **params).status == 200
    return channel


def post(
    server: RunningServer, channel: str, seq: object, body: bytes = b"", token: str | None = "", **headers: str
) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(server, "POST", path(channel, seq), body, named, token)


def get(server: RunningServer, channel: str, seq: object, token: str | None = "", **params: object) -> Reply:
    return ask(server, "GET", path(channel, seq), None, None, token, **params)


def delete(server: RunningServer, channel: str, seq: object | None = None, token: str | None = "") -> Reply:
    return ask(server, "DELETE", path(channel, seq), None, None, token)


def head_of(server: RunningServer, channel: str) -> int:
    answer = get(server, channel, "next")
    assert answer.headers["lp-trickle-latest"] == answer.body.decode()
    return int(answer.body)


def shown(server: RunningServer, channel: str) -> dict[str, Any]:
    """What the server says of an open channel."""
    found = [one for one in ask(server, "GET", "/v1/channels").json["channels"] if one["name"] == channel]
    return found[0] if found else {}


def readers(server: RunningServer, channel: str) -> int:
    """How many read or wait."""
    return int(shown(server, channel).get("readers", 0))


class Raw:
    """One connection, and what came over it."""

    def __init__(self, server: RunningServer, request: bytes, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", server.port))
        self.file = self.socket.makefile("rb")
        self.socket.sendall(request)
        self.interims = 0
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    @property
    def silent(self) -> bool:
        """Nothing has come."""
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(20)

    def head(self) -> int:
        """Read the next head that is not interim."""
        while True:
            self.status = int(self.file.readline().split()[1])
            self.headers = {}
            while line := self.file.readline().strip():
                name, _, value = line.decode().partition(":")
                self.headers[name.lower()] = value.strip()
            if self.status >= 200:
                return self.status
            self.interims += 1

    def chunk(self) -> bytes:
        """The next chunk of the body; empty at its end. `EOFError` if the connection was cut before that."""
        line = self.file.readline()
        data = self.file.read(int(line, 16) + 2) if line.endswith(b"\n") else b""
        if not data.endswith(b"\r\n"):
            raise EOFError
        return data[:-2]

    def rest(self) -> bytes:
        """All that is left of the body, which must end properly."""
        if "content-length" in self.headers:
            return self.file.read(int(self.headers["content-length"]))
        if self.headers.get("transfer-encoding") != "chunked":
            return self.file.read()
        return b"".join(iter(self.chunk, b""))


def request(server: RunningServer, method: str, target: str, fields: dict[str, str], version: str = "1.1") -> bytes:
    given = {"Host": "test", "Authorization": f"Bearer {server.admin_token}", **fields}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {target} HTTP/{version}\r\n{lines}\r\n".encode()


class Post(Raw):
    """A segment that is being published, in chunks."""

    def __init__(self, server: RunningServer, channel: str, seq: object, *pieces: bytes, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(server, request(server, "POST", path(channel, seq), {"Transfer-Encoding": "chunked", **named}))
        for piece in pieces:
            self.send(piece)

    def send(self, piece: bytes) -> None:
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> Post:
        """End the body and read the head of the answer."""
        self.socket.sendall(b"0\r\n\r\n")
        self.head()
        return self


class Get(Raw):
    """A reader of one segment."""

    def __init__(
        self, server: RunningServer, channel: str, seq: object, *, method: str = "GET", version: str = "1.1",
        receive_buffer: int = 0, query: str = "", **headers: str,
    ) -> None:  # fmt: skip
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        target = path(channel, seq) + (f"?{query}" if query else "")
        super().__init__(server, request(server, method, target, named, version), receive_buffer)

    def opened(self) -> Get:
        assert self.head() == 200, self.rest()
        return self


def cut_off(reader: Raw) -> bool:
    """The connection ends, and the body does not."""
    try:
        return b"0\r\n\r\n" not in reader.file.read()
    except ConnectionResetError:
        return True


def waiting(server: RunningServer, channel: str, *seqs: object) -> list[Get]:
    """Readers that wait, each for its segment."""
    before = readers(server, channel)
    opened = [Get(server, channel, seq) for seq in seqs]
    wait_until(lambda: readers(server, channel) == before + len(seqs))
    return opened
