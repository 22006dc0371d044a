"""A small synchronous client of the own API, on nothing but http.client.

    client = Client("http://127.0.0.1:8800", token)
    place = client.publish("/orders", b'{"item":"boots"}', key="order-17")
    for event in client.tail("/orders", after=place.id):
        print(event.body)

One client is one connection: use it from one thread at a time.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import InputInvalid, PenstockError

S = TypeVar("S")

_URL_LOOKS = "Give --url or PENSTOCK_URL like http://127.0.0.1:8800."

PIECE_LINES = 10_000
PIECE_BYTES = 4 * 1024 * 1024
"""Lines and bytes of one request of many events: half of the server's default `server.body_limit`."""


class ApiError(PenstockError):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.status, self.code, self.remedy = status, code, remedy


class Unreachable(PenstockError):
    """There is no answer from the server. A publish may or may not have been stored: repeat it with its key."""

    code = "unreachable"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"no answer from {url}: {why}")
        self.remedy = "Start the server with './penstock up', or give the right --url."


class Place(msgspec.Struct, frozen=True):
    """Where a published event went."""

    id: int
    stream: str
    index: int | None
    cursor: str


class Many(msgspec.Struct, frozen=True):
    """Where many events went."""

    count: int
    first: Place
    last: Place
    repeated: bool = False


class Event(msgspec.Struct, frozen=True):
    """An event as it is read."""

    id: int
    stream: str
    index: int | None
    cursor: str
    type: str
    time: str
    data: str | None = None
    data_base64: str | None = None
    attributes: dict[str, str] = {}
    expires: str | None = None
    kind: str = "data"

    @property
    def body(self) -> bytes:
        """What was published, byte for byte."""
        return base64.b64decode(self.data_base64) if self.data_base64 is not None else (self.data or "").encode()


class Range(msgspec.Struct, frozen=True):
    """Ids that a tail could not show, because that part of the log is no longer there."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")


class Gap(msgspec.Struct, frozen=True):
    """A hole in a tail."""

    gap: Range


class Page(msgspec.Struct, frozen=True):
    """What a read found; the next one goes on after `upto`."""

    entries: list[Event]
    upto: int
    more: bool = False


class Stream(msgspec.Struct, frozen=True):
    """A stream in the list."""

    stream: str
    next_index: int
    cursor: str
    last_id: int
    last_time: str
    subscribers: list[str] = []


class _Streams(msgspec.Struct, frozen=True):
    streams: list[Stream]
    after: str | None = None


class _Problem(msgspec.Struct, frozen=True):
    code: str
    message: str
    remedy: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Problem


class Client:
    """Talks to one server."""

    def __init__(self, url: str, token: str = "", *, timeout: float = 30) -> None:
        self.url, self._token, self._timeout = url.rstrip("/"), token, timeout
        self._secure, self._host, self._port, self._prefix = _parts(url)
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; the next call opens another."""
        if self._connection:
            self._connection.close()
            self._connection = None

    def publish(
        self, stream: str, body: bytes, *, type: str = "", key: str = "", expires_in: int | None = None
    ) -> Place:
        """Store one event and return where it went. With *key* it is safe to repeat."""
        headers = {"Event-Type": type, "Idempotency-Key": key, "Expires-In": expires_in}
        return self._call(Place, "POST", "/v1/publish", {"stream": stream}, body, headers)

    def publish_many(self, stream: str, bodies: Iterable[bytes], *, type: str = "", key: str = "") -> Many:
        """Store events in their order; none of them may hold a newline.

        Few go in one request and are stored together; many go in several, each stored by itself.
        """
        answers = [
            self.publish_lines(stream, piece, type=type, key=f"{key}/{number}" if key else "")
            for number, piece in enumerate(pieces(bodies))
        ]
        if not answers:
            raise InputInvalid("events", "there are none")
        repeated = all(answer.repeated for answer in answers)
        return Many(sum(answer.count for answer in answers), answers[0].first, answers[-1].last, repeated)

    def publish_lines(self, stream: str, lines: bytes, *, type: str = "", key: str = "") -> Many:
        """Store one event a line, in one request."""
        headers = {"Content-Type": "application/x-ndjson", "Event-Type": type, "Idempotency-Key": key}
        return self._call(Many, "POST", "/v1/publish", {"stream": stream}, lines, headers)

    def read(self, stream: str, *, start: int = 0, limit: int = 100) -> Page:
        """Events of one stream from index *start* on."""
        return self._call(Page, "GET", "/v1/read", {"stream": stream, "from": start, "limit": limit})

    def read_after(self, pattern: str, after: int, *, limit: int = 100) -> Page:
        """Events with ids greater than *after* of all streams that match."""
        return self._call(Page, "GET", "/v1/read", {"streams": pattern, "after": after, "limit": limit})

    def tail(self, pattern: str, *, after: int | None = None) -> Iterator[Event | Gap]:
        """Events as they come, for ever; with *after* first those that were missed.

        Uses a connection of its own. Raises `Unreachable` when it ends: go on after the last id.
        """
        query = {"streams": pattern} | ({} if after is None else {"after": str(after)})
        connection = self._open(timeout=None)
        try:
            response = self._send(connection, "GET", self._target("/v1/tail", query), b"", self._headers({}))
            if response.status != 200:
                raise _refusal(response.status, response.read())
            for line in response:
                yield _line(line)
            raise Unreachable(self.url, "the server ended the tail")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self.url, _reason(error)) from error
        finally:
            connection.close()

    def streams(self, pattern: str = ">") -> Iterator[Stream]:
        """The streams that match, by name; fetched page by page."""
        after: str | None = ""
        while after is not None:
            page = self._call(_Streams, "GET", "/v1/streams", {"pattern": pattern, "limit": 1000, "after": after})
            yield from page.streams
            after = page.after

    def why(self, entry: str, recipient: str) -> dict[str, Any]:
        """What became of an entry for a recipient, as the ledger has it."""
        return self._call(dict[str, Any], "GET", "/v1/why", {"entry": entry, "recipient": recipient})

    def health(self) -> dict[str, Any]:
        """What the server says about itself."""
        return self._call(dict[str, Any], "GET", "/health", {})

    def call(self, method: str, path: str, query: dict[str, Any] | None = None, body: bytes = b"") -> dict[str, Any]:
        """Any other call that answers with a JSON object."""
        return self._call(dict[str, Any], method, path, query or {}, body)

    def send(self, method: str, path: str, query: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
        """Any other call, whatever it answers with."""
        status, answer = self._exchange(method, self._target(path, query or {}), body, self._headers({}))
        if status >= 300:
            raise _refusal(status, answer)
        return answer

    def _call(
        self,
        type: type[S],
        method: str,
        path: str,
        query: dict[str, Any],
        body: bytes = b"",
        headers: dict[str, Any] | None = None,
    ) -> S:
        status, answer = self._exchange(method, self._target(path, query), body, self._headers(headers or {}))
        if status >= 300:
            raise _refusal(status, answer)
        return msgspec.json.decode(answer, type=type)

    def _exchange(self, method: str, target: str, body: bytes, headers: dict[str, bytes]) -> tuple[int, bytes]:
        # A kept connection may have been closed by the server meanwhile; then a call that is safe
        # to repeat is sent once more on a new one.
        repeatable = self._connection is not None and (method == "GET" or "Idempotency-Key" in headers)
        try:
            connection = self._connection = self._connection or self._open(self._timeout)
            response = self._send(connection, method, target, body, headers)
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if repeatable and isinstance(error, ConnectionError):
                return self._exchange(method, target, body, headers)
            raise Unreachable(self.url, _reason(error)) from error

    def _send(
        self, connection: http.client.HTTPConnection, method: str, target: str, body: bytes, headers: dict[str, bytes]
    ) -> http.client.HTTPResponse:
        connection.request(method, target, body or None, headers)
        return connection.getresponse()

    def _open(self, timeout: float | None) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _target(self, path: str, query: dict[str, Any]) -> str:
        # What the command line could not decode goes out as it was typed: the server says what is wrong with it.
        text = urlencode(query, quote_via=quote, safe="/*>", errors="surrogateescape")
        return self._prefix + path + ("?" + text if text else "")

    def _headers(self, headers: dict[str, Any]) -> dict[str, bytes]:
        given = {name: str(value) for name, value in headers.items() if value not in ("", None)}
        sent = {name: _field(f"header {name}", value) for name, value in given.items()}
        return sent | ({"Authorization": b"Bearer " + _field("the token given", self._token)} if self._token else {})


def _parts(url: str) -> tuple[bool, str, int | None, str]:
    """Whether it is TLS, host, port and path of a server's address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
        parts.path.encode("ascii")
    except ValueError as error:
        raise InputInvalid("url", f"{url!r} is no address: {error}", remedy=_URL_LOOKS) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputInvalid("url", f"{url!r} is not http://HOST:PORT", remedy=_URL_LOOKS)
    return parts.scheme == "https", host, port, parts.path.rstrip("/")


def _field(what: str, value: str) -> bytes:
    """A header's value as it is sent: UTF-8, and nothing that would end its line."""
    if not value.isprintable():
        raise InputInvalid(what, "holds a line break or another control character", remedy="Give one line of text.")
    return value.encode()


def pieces(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """*bodies* as lines, in pieces that fit one request each."""
    lines: list[bytes] = []
    size = 0
    for body in bodies:
        if b"\n" in body:
            raise InputInvalid("event", "holds a newline", remedy="Publish it by itself.")
        if lines and (len(lines) >= PIECE_LINES or size + len(body) >= PIECE_BYTES):
            yield b"\n".join(lines) + b"\n"
            lines, size = [], 0
        lines.append(body)
        size += len(body) + 1
    if lines:
        yield b"\n".join(lines) + b"\n"


def _line(line: bytes) -> Event | Gap:
    if line.startswith(b'{"gap"'):
        return msgspec.json.decode(line, type=Gap)
    return msgspec.json.decode(line, type=Event)


def _refusal(status: int, answer: bytes) -> ApiError:
    try:
        problem = msgspec.json.decode(answer, type=_Refusal).error
    except msgspec.MsgspecError:
        shown = answer[:200].decode(errors="replace").strip() or "no explanation"
        return ApiError(status, f"http_{status}", shown, "Look at the address: is this a Penstock server?")
    return ApiError(status, problem.code, problem.message, problem.remedy)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
