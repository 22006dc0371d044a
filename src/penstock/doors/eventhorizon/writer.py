"""`/writer/*`: makes streams, appends lines, subscribes and unsubscribes."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.api.context import Context
from penstock.core.names import check_name
from penstock.doors.eventhorizon.requests import AppendRequest, CreateStreamRequest, SubscriptionRequest
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.errors import InputInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import CHUNK_BYTES, SUBSCRIBERS
from penstock.values import Appended, Batch, Draft, Head, Kind
from penstock.wire.eventhorizon import SUBSCRIPTIONS, Cursor, timestamp
from penstock.wire.eventhorizon import subscribed as subscribed_payload
from penstock.wire.gojson import decode

_TEXT = "text/plain; charset=utf-8"


class WriterCalls:
    """Answers the calls that change something."""

    def __init__(self, context: Context, subscriptions: Subscriptions) -> None:
        self._context, self._subscriptions = context, subscriptions
        self._log = context.log
        self._changing = asyncio.Lock()  # two at once must not write `Subscribed` twice

    async def create_stream(self, request: Request) -> Response:
        """Make a stream whose parent exists; the parent hears of it in the same batch."""
        caller = self._context.caller(request)
        caller.check_publishes()
        asked = decode(request.body, CreateStreamRequest)
        name = check_name(asked.name)
        # A subscription's stream is made by its app, and then written to by the server alone.
        caller.check_covered(name) if name.startswith(SUBSCRIPTIONS) else caller.check_publish(name)
        await self._log.append(Batch(create=name))
        return _json(201, {"Name": name})

    async def append(self, request: Request) -> Response:
        """Append lines, all or none of them."""
        caller = self._context.caller(request)
        caller.check_publishes()
        asked = decode(request.body, AppendRequest)
        stream = check_name(asked.stream)
        caller.check_publish(stream)
        await self._head(stream)
        if not asked.lines:
            return _json(201, {"Offset": ""})
        batch = Batch(asked.drafts(), make_missing=False, expect=asked.expect())
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
                if (count := len(head.subscribers) + 1) > SUBSCRIBERS:
                    raise TooLarge("number of subscriptions to one stream", count, SUBSCRIBERS)
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

    def _asked_subscription(self, request: Request) -> SubscriptionRequest:
        caller = self._context.caller(request)
        caller.check_subscribes()
        asked = decode(request.body, SubscriptionRequest)
        asked.check()
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


def _json(status: int, value: object) -> Response:
    return Response(status, msgspec.json.encode(value) + b"\n")
