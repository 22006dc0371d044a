"""`/writer/*`: makes streams, appends lines, subscribes and unsubscribes, reads the live chunk."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.api.context import Context
from penstock.core.names import check_name
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.errors import InputInvalid, NotFound, TooLarge
from penstock.http.exchange import Request, Response
from penstock.limits import BATCH_ENTRIES, CHUNK_BYTES, LINE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Draft, Expect, Head, Kind
from penstock.wire.eventhorizon import SUBSCRIPTIONS, Cursor, CursorInvalid, is_line, parse_cursor, raw_line, timestamp
from penstock.wire.eventhorizon import subscribed as subscribed_payload
from penstock.wire.gojson import decode

_TEXT = "text/plain; charset=utf-8"


class CreateStream(msgspec.Struct, rename="pascal"):
    """A stream to make."""

    name: str = ""


class Append(msgspec.Struct, rename="pascal"):
    """Lines for a stream that exists. With an expected offset only if the stream ends there."""

    stream: str = ""
    lines: list[str] = []
    expected_offset: str = ""


class Subscribe(msgspec.Struct, rename="pascal"):
    """A stream, and the subscription that shall hear of it, or no longer."""

    stream: str = ""
    subscription_id: str = ""


class LiveRead(msgspec.Struct, rename="pascal"):
    """A position in a chunk that is still written to."""

    cursor: str = ""
    max_lines_to_read: int = 0


class Writer:
    """Answers the calls that change something."""

    def __init__(self, context: Context, subscriptions: Subscriptions) -> None:
        self._context, self._subscriptions = context, subscriptions
        self._log = context.log
        self._changing = asyncio.Lock()  # two at once must not write `Subscribed` twice

    async def create_stream(self, request: Request) -> Response:
        """Make a stream whose parent exists; the parent hears of it in the same batch."""
        caller = self._context.caller(request)
        caller.check_publishes()
        asked = decode(request.body, CreateStream)
        name = check_name(asked.name)
        # A subscription's stream is made by its app, and then written to by the server alone.
        caller.check_covered(name) if name.startswith(SUBSCRIPTIONS) else caller.check_publish(name)
        await self._log.append(Batch(create=name))
        return _json(201, {"Name": name})

    async def append(self, request: Request) -> Response:
        """Append lines, all or none of them."""
        caller = self._context.caller(request)
        caller.check_publishes()
        asked = decode(request.body, Append)
        stream = check_name(asked.stream)
        caller.check_publish(stream)
        if await self._log.head(stream) is None:
            raise NotFound("stream", stream, code="stream_missing", remedy="Create the stream first.")
        if not asked.lines:
            return _json(201, {"Offset": ""})
        batch = Batch(_drafts(stream, asked.lines), make_missing=False, expect=_expected(asked))
        appended = await self._log.append(batch)
        return _json(201, {"Offset": str(await self._offset_after(appended))})

    async def _offset_after(self, appended: Appended) -> Cursor:
        """The position after everything that was written, the chunk's last line included if it is full now."""
        last = appended.last
        end = last.end
        if end > CHUNK_BYTES:  # exactly then the batch sealed its chunk
            page = await self._log.read_cursor(last.stream, last.chunk, end, limit=1)
            end = page.entries[0].end
        return Cursor(last.stream, last.chunk, end, self._log.server)

    async def subscribe(self, request: Request) -> Response:
        """Let a subscription hear of a stream. Once more is no mistake, and changes nothing."""
        asked = self._asked_subscription(request)
        stream, id = asked.stream, asked.subscription_id
        if stream.startswith(SUBSCRIPTIONS):
            raise InputInvalid(
                "Stream", "is a subscription's own: subscribing to it would never end", code="subscription_loops"
            )
        if await self._log.head(id) is None:
            raise NotFound(
                "subscription stream", id, code="subscription_missing", remedy="Create the subscription stream first."
            )
        async with self._changing:
            head = await self._head(stream)
            if id not in head.subscribers:
                await self._subscriptions.keep(stream, id)
                await self._append_meta(stream, "Subscribed", id)
        return Response(200, b"OK\n", _TEXT)

    async def unsubscribe(self, request: Request) -> Response:
        """Let a subscription hear no more of a stream. Without a subscription there is nothing to do."""
        asked = self._asked_subscription(request)
        stream, id = asked.stream, asked.subscription_id
        async with self._changing:
            head = await self._head(stream)
            if id in head.subscribers:
                record = await self._subscriptions.kept(stream, id)
                await self._append_meta(stream, "Unsubscribed", id)
                if record is not None:
                    await self._subscriptions.drop(record)
        return Response(200, b"OK\n", _TEXT)

    def _asked_subscription(self, request: Request) -> Subscribe:
        caller = self._context.caller(request)
        caller.check_subscribes()
        asked = decode(request.body, Subscribe)
        check_name(asked.stream)
        check_name(asked.subscription_id)
        if not asked.subscription_id.startswith(SUBSCRIPTIONS):
            raise InputInvalid("SubscriptionId", f"does not begin with {SUBSCRIPTIONS}", code="subscription_id_invalid")
        caller.check_subscribe(asked.stream)
        # The subscription's stream will be written to, and whoever reads it learns of this one.
        caller.check_covered(asked.subscription_id)
        return asked

    async def _head(self, stream: str) -> Head:
        head = await self._log.head(stream)
        if head is None:
            raise NotFound("stream", stream, code="stream_missing", remedy="Create the stream first.")
        return head

    async def _append_meta(self, stream: str, type: str, id: str) -> None:
        payload = subscribed_payload(id, timestamp(self._context.clock.now_ms()))
        await self._log.append(Batch((Draft(stream, payload, type, kind=Kind.META),), make_missing=False))

    async def liveread(self, request: Request) -> Response:
        """Stored lines as they are, type byte and newline included, of a chunk that is still written to."""
        caller = self._context.caller(request)
        caller.check_subscribes()
        asked = decode(request.body, LiveRead)
        try:
            cursor = parse_cursor(asked.cursor)
        except CursorInvalid as error:
            raise InputInvalid("Cursor", str(error), code="cursor_invalid") from None
        caller.check_subscribe(check_name(cursor.stream))
        head = await self._log.head(cursor.stream)
        if head is None or head.chunk != cursor.chunk:
            raise NotFound("live chunk", str(cursor), code="chunk_missing", remedy="Read it with /reader/read.")
        if asked.max_lines_to_read <= 0:
            return Response(200, b"", _TEXT)
        limit = min(asked.max_lines_to_read, PAGE_ENTRIES)
        page = await self._log.read_cursor(cursor.stream, cursor.chunk, cursor.offset, limit=limit)
        return Response(200, b"".join(map(raw_line, page.entries)), _TEXT)


def _drafts(stream: str, lines: list[str]) -> tuple[Draft, ...]:
    if len(lines) > BATCH_ENTRIES:
        raise TooLarge("lines", len(lines), BATCH_ENTRIES)
    drafts = []
    for number, line in enumerate(lines):
        body = line.encode()
        if len(body) > LINE_BYTES:
            raise TooLarge(f"bytes of line {number}", len(body), LINE_BYTES)
        if not is_line(body):
            raise InputInvalid(f"line {number}", "has a newline", code="line_invalid")
        drafts.append(Draft(stream, body))
    return tuple(drafts)


def _expected(asked: Append) -> Expect | None:
    if not asked.expected_offset:
        return None
    try:
        cursor = parse_cursor(asked.expected_offset)
    except CursorInvalid as error:
        raise InputInvalid("ExpectedOffset", str(error), code="cursor_invalid") from None
    if cursor.stream != asked.stream:
        raise InputInvalid("ExpectedOffset", f"is a cursor of {cursor.stream!r}", code="cursor_invalid")
    return Expect(asked.stream, chunk=cursor.chunk, offset=cursor.offset)


def _json(status: int, value: object) -> Response:
    return Response(status, msgspec.json.encode(value) + b"\n")
