"""A small synchronous client of Penstock's API.

    client = Client("http://127.0.0.1:8800", token)
    place = client.publish("/orders", b'{"item":"boots"}', key="order-17")
    for event in client.tail("/orders", after=place.id):
        print(event.body)

One client is one connection: use it from one thread at a time.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from penstock.client.http import ApiError, HttpClient, ServerUnreachable, Values
from penstock.errors import InputInvalid

__all__ = [
    "ApiError",
    "Client",
    "Event",
    "EventPage",
    "Gap",
    "Published",
    "PublishedMany",
    "ServerUnreachable",
    "Stream",
]

S = TypeVar("S")

PIECE_LINES = 10_000
PIECE_BYTES = 4 * 1024 * 1024
"""Lines and bytes of one request of many events: half of the server's default `server.body_limit`."""


class Published(msgspec.Struct, frozen=True):
    """Where a published event went."""

    id: int
    stream: str
    index: int | None
    cursor: str


class PublishedMany(msgspec.Struct, frozen=True):
    """Where many events went."""

    count: int
    first: Published
    last: Published
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


class IdRange(msgspec.Struct, frozen=True):
    """Ids that a tail could not show, because that part of the log is no longer there."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")


class Gap(msgspec.Struct, frozen=True):
    """A hole in a tail."""

    gap: IdRange


class EventPage(msgspec.Struct, frozen=True):
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


class Client(HttpClient):
    """Talks to one server."""

    def publish(
        self, stream: str, body: bytes, *, type: str = "", key: str = "", expires_in: int | None = None
    ) -> Published:
        """Store one event and return where it went. With *key* it is safe to repeat."""
        headers = {"Event-Type": type, "Idempotency-Key": key, "Expires-In": expires_in}
        return self._call(Published, "POST", "/v1/publish", {"stream": stream}, body, headers)

    def publish_many(self, stream: str, bodies: Iterable[bytes], *, type: str = "", key: str = "") -> PublishedMany:
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
        return PublishedMany(sum(answer.count for answer in answers), answers[0].first, answers[-1].last, repeated)

    def publish_lines(self, stream: str, lines: bytes, *, type: str = "", key: str = "") -> PublishedMany:
        """Store one event a line, in one request."""
        headers = {"Content-Type": "application/x-ndjson", "Event-Type": type, "Idempotency-Key": key}
        return self._call(PublishedMany, "POST", "/v1/publish", {"stream": stream}, lines, headers)

    def read(self, stream: str, *, start: int = 0, limit: int = 100) -> EventPage:
        """Events of one stream from index *start* on."""
        return self._call(EventPage, "GET", "/v1/read", {"stream": stream, "from": start, "limit": limit})

    def read_after(self, pattern: str, after: int, *, limit: int = 100) -> EventPage:
        """Events with ids greater than *after* of all streams that match."""
        return self._call(EventPage, "GET", "/v1/read", {"streams": pattern, "after": after, "limit": limit})

    def tail(self, pattern: str, *, after: int | None = None) -> Iterator[Event | Gap]:
        """Events as they come, for ever; with *after* first those that were missed.

        Uses a connection of its own. Raises `ServerUnreachable` when it ends: go on after the last id.
        """
        with self.open("/v1/tail", {"streams": pattern} | ({} if after is None else {"after": after})) as response:
            for line in response:
                is_gap = line.startswith(b'{"gap"')
                yield msgspec.json.decode(line, type=Gap) if is_gap else msgspec.json.decode(line, type=Event)
        raise ServerUnreachable(self.url, "the server ended the tail")

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
        return self._call(dict[str, Any], "GET", "/health")

    def call(self, method: str, path: str, query: Values | None = None, body: bytes = b"") -> dict[str, Any]:
        """Any other call that answers with a JSON object."""
        return self._call(dict[str, Any], method, path, query, body)

    def _call(
        self,
        type: type[S],
        method: str,
        path: str,
        query: Values | None = None,
        body: bytes = b"",
        headers: Values | None = None,
    ) -> S:
        return msgspec.json.decode(self.send(method, path, query, body, headers), type=type)


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
