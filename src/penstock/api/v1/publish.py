"""`POST /v1/publish`: one event as raw body, or many as lines."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, only
from penstock.api.describing import CURSOR, PRINTABLE, operation, stream, text
from penstock.api.describing import number as number_parameter
from penstock.core.metering import Histogram
from penstock.core.names import check_name
from penstock.core.promise import Pending
from penstock.errors import InputInvalid, PenstockError, TooLarge
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Later, Response
from penstock.limits import (
    ATTRIBUTES_BYTES,
    BATCH_BYTES,
    BATCH_ENTRIES,
    ENTRY_BYTES,
    EXPIRES_SECONDS,
    KEY_BYTES,
    NAME_BYTES,
    TYPE_BYTES,
)
from penstock.values import Appended, Batch, Draft, Expect, Key, Place, Producer
from penstock.wire.eventhorizon import CursorInvalid, parse_cursor

_PRODUCER = re.compile(r"([^/]+)/([0-9]{1,18})", re.ASCII)
_SAMPLED = 16  # one publish in so many is timed: timing each would cost more than it tells
SLICE_BYTES = 16 * 1024  # of lines that are cut in one turn of the loop: a millisecond of the shortest
_NEWLINE = b"\n"
_encode = msgspec.json.Encoder().encode


class PlaceJson(msgspec.Struct):
    """Coordinates as the API shows them."""

    id: int
    stream: str
    index: int | None
    cursor: str


class PlacesJson(msgspec.Struct, omit_defaults=True):
    """The answer to many events at once."""

    count: int
    first: PlaceJson
    last: PlaceJson
    repeated: bool = False


@dataclass(slots=True)
class PublishOptions:
    """What the head of a publish asks for; most ask for nothing but a stream."""

    caller: Caller
    stream: str
    answered: Callable[[Appended], Response]  # how a single event is answered
    type: str = ""
    attributes: str = ""
    expires_seconds: int = 0
    expect: Expect | None = None
    key: str = ""
    producer: Producer | None = None
    lines: bool = False  # every line of the body is an event
    plain: bool = True  # it asks for nothing but the stream


class PublishApi:
    """Takes events in."""

    def __init__(self, context: Context) -> None:
        self._context, self._log, self._clock = context, context.log, context.clock
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.seconds, self.lines_seconds = Histogram(), Histogram()

    @operation(
        "Publish one event (raw body) or many (application/x-ndjson, a line each).",
        query=(stream("stream", "Name of a stream, like /orders/eu.", required=True),),
        headers=(
            text("Idempotency-Key", "The same key stores nothing again and gets the first answer.",
                 pattern=PRINTABLE, least=1, most=KEY_BYTES),
            text("Producer", "NAME/SEQUENCE: one not above your last under NAME is a repeat, for ever.",
                 pattern=r"^[ -.0-~]+/[0-9]{1,18}$", most=KEY_BYTES),
            text("Expected-Position", "Index or cursor at which the stream must be.",
                 pattern=rf"^[0-9]{{1,18}}$|{CURSOR}", most=NAME_BYTES + 60),
            text("Event-Type", "Type of the event.", pattern=PRINTABLE, least=1, most=TYPE_BYTES),
            text("Event-Attributes", "A JSON object of strings.", most=ATTRIBUTES_BYTES),
            number_parameter("Expires-In", "Seconds after which nobody gets it.", least=1, most=EXPIRES_SECONDS),
        ),
        body={"application/octet-stream": {"type": "string", "format": "binary"},
              "application/x-ndjson": {"type": "string", "minLength": 1}},
        body_required=False,
        answers={201: {"oneOf": [PlaceJson, PlacesJson]}},
        errors=(409, 507),
    )  # fmt: skip
    def publish(self, request: Request) -> Later | asyncio.Future[Response]:
        """Publish, and answer when it is durable."""
        options, body = self._options(request, self._context.caller(request)), request.body
        if options.plain:
            appending = self._log.append_event(options.stream, body)
        else:
            expires_ms = self._clock.now_ms() + 1000 * options.expires_seconds if options.expires_seconds else None
            if options.lines:
                storing = self._loop.create_task(self._publish_many(body, options, expires_ms))
                self._time(storing, self.lines_seconds)
                return storing
            batch = _batch((body,), _digest(body, options) if options.key else b"", options, expires_ms)
            appending = self._log.append(batch)
        self._count += 1
        if not self._count % _SAMPLED:
            self._time(appending, self.seconds)
        return Later(appending, options.answered)

    def admit(self, request: Request) -> None:
        """Refuse before the body is read what its head says to refuse."""
        self._options(request, self._context.known(request))

    def _options(self, request: Request, caller: Caller) -> PublishOptions:
        options: PublishOptions | None = request.memo.get("publish")
        if options is None or options.caller is not caller:
            options = request.memo["publish"] = _options(request, caller, self._log.server)
        return options

    def _time(self, storing: Pending[Any], seconds: Histogram) -> None:
        began = perf_counter()
        storing.add_done_callback(lambda _: seconds.observe(perf_counter() - began))

    async def _publish_many(self, body: bytes, options: PublishOptions, expires_ms: int | None) -> Response:
        """Store the lines in order, as one batch if they fit, else as several."""
        _check_lines(body)
        digest = _digest(body, options) if options.key else b""
        results: list[Appended] = []
        waiting: list[bytes] = []
        try:
            async for lines in _batches(body):
                if waiting:
                    if options.producer:
                        raise TooLarge("lines under one producer sequence", BATCH_ENTRIES + len(lines), BATCH_ENTRIES)
                    batch = _batch(tuple(waiting), digest, options, expires_ms, len(results))
                    results.append(await self._log.append(batch))
                waiting = lines
            if not waiting:
                raise InputInvalid("body", "has no line that is not empty")
            batch = _batch(tuple(waiting), digest, options, expires_ms, len(results))
            results.append(await self._log.append(batch))
        except PenstockError as error:
            if not results:
                raise
            return _failed_after(sum(result.count for result in results), error)
        first, last = results[0], results[-1]
        count = sum(result.count for result in results)
        server = self._log.server
        shown = PlacesJson(count, _shown(first.first, server), _shown(last.last, server), first.repeated)
        return Response(201, _encode(shown))


class SingleAnswer:
    """The answers to single events of one stream, between which only numbers differ: the text is encoded once."""

    __slots__ = ("_form",)

    def __init__(self, stream: str, server: str) -> None:
        name, end = (_encode(text)[1:-1].replace(b"%", b"%%") for text in (stream, server))
        self._form = b'{"id":%%d,"stream":"%b","index":%%d,"cursor":"%b:%%d:%%d:%b"}' % (name, name, end)

    def __call__(self, appended: Appended) -> Response:
        place = appended.last
        return Response(201, self._form % (place.id, place.index, place.chunk, place.end))


def _shown(place: Place, server: str) -> PlaceJson:
    return PlaceJson(place.id, place.stream, place.index, f"{place.stream}:{place.chunk}:{place.end}:{server}")


def _failed_after(taken: int, error: PenstockError) -> Response:
    """The answer when earlier batches of a long body are stored already: it says how many lines they had."""
    response = error_response(error)
    response.body = _encode(msgspec.json.decode(response.body) | {"taken": taken})
    return response


def _batch(
    bodies: tuple[bytes, ...], digest: bytes, options: PublishOptions, expires_ms: int | None, part: int = 0
) -> Batch:
    """One batch of a request; *part* counts the batches that one long body becomes, *digest* is of the whole."""
    stream, type, attributes = options.stream, options.type, options.attributes
    if len(bodies) == 1:
        drafts: tuple[Draft, ...] = (Draft(stream, bodies[0], type, attributes, expires_ms),)
    else:
        drafts = tuple([Draft(stream, body, type, attributes, expires_ms) for body in bodies])
    key = _key(digest, options, part) if options.key else None
    return Batch(drafts, "", True, options.expect if part == 0 else None, key, options.producer)


def _digest(whole: bytes, options: PublishOptions) -> bytes:
    return hashlib.sha256(b"\n".join((options.type.encode(), options.attributes.encode(), whole))).digest()


def _key(digest: bytes, options: PublishOptions, part: int) -> Key:
    key = f"{options.key}/{part}" if part else options.key
    return Key(options.caller.subject, options.stream, key, digest)


def _check_lines(body: bytes) -> None:
    """Refuse a line that is too long, before any is stored; looks at one place in a megabyte."""
    begin = 0
    while len(body) - begin > ENTRY_BYTES:
        end = body.rfind(b"\n", begin, begin + ENTRY_BYTES + 2)
        if end < 0:
            end = body.find(b"\n", begin)
            line = body[begin : end if end >= 0 else len(body)].removesuffix(b"\r")
            if len(line) > ENTRY_BYTES:
                raise TooLarge(f"bytes of line {body.count(_NEWLINE, 0, begin) + 1}", len(line), ENTRY_BYTES)
            end = begin + len(line)
        begin = end + 1


async def _batches(body: bytes) -> AsyncIterator[list[bytes]]:
    """Cut a body into batches of lines; empty lines are no events. Others have their turn between two slices."""
    batch: list[bytes] = []
    size = begin = 0
    while begin < len(body):
        end = body.find(b"\n", begin + SLICE_BYTES) + 1 or len(body)
        for raw in body[begin:end].split(b"\n"):
            line = raw.removesuffix(b"\r")
            if not line:
                continue
            if len(batch) == BATCH_ENTRIES or size + len(line) > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        begin = end
        if begin < len(body):
            await asyncio.sleep(0)
    if batch:
        yield batch


_HEADERS = frozenset(
    (b"content-type", b"event-type", b"event-attributes", b"expires-in", b"expected-position", b"idempotency-key",
     b"producer")
)  # fmt: skip


def _options(request: Request, caller: Caller, server: str) -> PublishOptions:
    """What the head asks for, checked against the caller's grants. Headers that mean nothing here are passed over."""
    only(request, "stream")
    stream = check_name(request.params.get("stream", ""))
    caller.check_publish(stream)
    options = PublishOptions(caller, stream, SingleAnswer(stream, server))
    for name, value in request.headers:
        if name in _HEADERS:
            _read_header(options, name, value)
            options.plain = options.plain and name == b"content-type" and not options.lines
    return options


def _read_header(options: PublishOptions, name: bytes, value: bytes) -> None:
    match name:
        case b"content-type":
            options.lines = value.partition(b";")[0].strip().lower() == b"application/x-ndjson"
        case b"event-type":
            options.type = _text("Event-Type", value, TYPE_BYTES)
        case b"event-attributes":
            options.attributes = _attributes(value)
        case b"expires-in":
            options.expires_seconds = _seconds(value)
        case b"expected-position":
            options.expect = _expected(_text("Expected-Position", value, NAME_BYTES + 60), options.stream)
        case b"idempotency-key":
            options.key = _text("Idempotency-Key", value, KEY_BYTES)
        case b"producer":
            options.producer = _producer(options.caller.subject, _text("Producer", value, KEY_BYTES))


def _text(name: str, value: bytes, limit: int) -> str:
    """A header's value as text: UTF-8, printable, within a limit."""
    if len(value) > limit:
        raise InputInvalid(f"header {name}", f"has {len(value)} bytes, more than {limit}")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InputInvalid(f"header {name}", "is not UTF-8") from None
    if not text or not text.isprintable():
        raise InputInvalid(f"header {name}", "is empty or not printable")
    return text


def _attributes(value: bytes) -> str:
    if len(value) > ATTRIBUTES_BYTES:
        raise TooLarge("bytes of Event-Attributes", len(value), ATTRIBUTES_BYTES)
    try:
        decoded = msgspec.json.decode(value, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputInvalid("header Event-Attributes", "is not a JSON object of strings") from None
    return _encode(decoded).decode() if decoded else ""


def _seconds(value: bytes) -> int:
    if not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= EXPIRES_SECONDS:
        raise InputInvalid("header Expires-In", f"is not a number of seconds from 1 to {EXPIRES_SECONDS:,}")
    return int(value)


def _expected(text: str, stream: str) -> Expect:
    """An index, or a cursor of this stream."""
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return Expect(stream, index=int(text))
    try:
        cursor = parse_cursor(text)
    except CursorInvalid as error:
        raise InputInvalid("header Expected-Position", f"is neither an index nor a cursor: {error}") from None
    if cursor.stream != stream:
        raise InputInvalid("header Expected-Position", f"is a cursor of {cursor.stream!r}, not of {stream!r}")
    return Expect(stream, chunk=cursor.chunk, offset=cursor.offset)


def _producer(subject: str, text: str) -> Producer:
    found = _PRODUCER.fullmatch(text)
    if not found:
        raise InputInvalid("header Producer", "is not of the form NAME/SEQUENCE")
    return Producer(subject, found.group(1), int(found.group(2)))
