"""`GET /v1/read`, `/v1/streams`, `/v1/consumers`: what is there."""

from __future__ import annotations

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, flag, integer, only, readable
from penstock.api.describing import (
    BOOLEAN,
    CURSOR,
    INTEGER,
    STRING_OR_NULL,
    a_list,
    an_object,
    number,
    operation,
    pattern,
    patterns,
    stream,
    text,
)
from penstock.api.describing import flag as flag_parameter
from penstock.api.describing import limit as limit_parameter
from penstock.api.v1.entries import EntryEncoder, EntryJson
from penstock.core.feed import Feed
from penstock.core.names import check_name, check_pattern
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import PAGE_ENTRIES, SHOWN_BYTES
from penstock.values import Page
from penstock.wire.eventhorizon import CursorInvalid, parse_cursor, timestamp

_encode = msgspec.json.Encoder().encode


class StreamJson(msgspec.Struct):
    """A stream in the list."""

    stream: str
    next_index: int
    cursor: str
    last_id: int
    last_time: str
    subscribers: tuple[str, ...]


class ConsumerJson(msgspec.Struct):
    """Somebody who reads."""

    door: str
    recipient: str
    streams: tuple[str, ...]
    position: int
    lag: int
    behind: bool


class ReadApi:
    """Answers questions about the log."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = context.log
        self._shown = EntryEncoder(context.log.server)

    @operation(
        "Read a page: by stream= and from=, by cursor=, or by streams= and after=.",
        query=(
            stream("stream", "Name of a stream; with from=."),
            number("from", "Index of the first entry."),
            text("cursor", "A cursor, as publish answers it.", pattern=CURSOR),
            patterns(),
            number("after", "Entries with greater ids only."),
            limit_parameter(),
            flag_parameter("meta", "true also shows meta entries and tombstones."),
        ),
        answers={200: an_object(entries=a_list(EntryJson), upto=INTEGER, more=BOOLEAN)},
        errors=(404, 410),
    )
    async def read(self, request: Request) -> Response:
        """A page by index, by cursor, or by id over a pattern."""
        caller = self._context.caller(request)
        only(request, "stream", "from", "cursor", "streams", "after", "limit", "meta")
        ways = [name for name in ("stream", "cursor", "streams") if name in request.params]
        if len(ways) != 1:
            raise InputInvalid("parameters", "need exactly one of stream=, cursor= and streams=")
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        integer(request, "from", 0), integer(request, "after", 0)  # nonsense is refused, also where it is not asked for
        way = {"stream": self._by_index, "cursor": self._by_cursor, "streams": self._by_id}[ways[0]]
        page = await way(request, caller, limit)
        body = b'{"entries":%b,"upto":%d,"more":%b}' % (
            self._shown.page(page.entries),
            page.upto,
            b"true" if page.more else b"false",
        )
        return Response(200, body)

    async def _by_index(self, request: Request, caller: Caller, limit: int) -> Page:
        stream = check_name(request.params["stream"])
        caller.check_subscribe(stream)
        index, meta = integer(request, "from", 0), flag(request, "meta")
        return await self._log.read_index(stream, index, limit=limit, limit_bytes=SHOWN_BYTES, meta=meta)

    async def _by_cursor(self, request: Request, caller: Caller, limit: int) -> Page:
        try:
            cursor = parse_cursor(request.params["cursor"])
        except CursorInvalid as error:
            raise InputInvalid("parameter cursor", str(error), code="cursor_invalid") from None
        caller.check_subscribe(check_name(cursor.stream))
        place = cursor.stream, cursor.chunk, cursor.offset
        page = await self._log.read_cursor(*place, limit=limit, limit_bytes=SHOWN_BYTES)
        if flag(request, "meta"):
            return page
        return Page(tuple(e for e in page.entries if e.index is not None), page.upto, page.more)

    async def _by_id(self, request: Request, caller: Caller, limit: int) -> Page:
        patterns, allow = readable(request, caller)
        after, meta = integer(request, "after", 0), flag(request, "meta")
        page = await self._log.read_after(patterns, after, limit=limit, limit_bytes=SHOWN_BYTES, meta=meta)
        if allow is None:
            return page
        return Page(tuple(e for e in page.entries if allow(e.stream)), page.upto, page.more)

    @operation(
        "List streams, in order of their names.",
        query=(
            pattern("pattern", "Which ones; > is all."),
            text("after", "Names after this one."),
            limit_parameter("Streams at most."),
        ),
        answers={200: an_object(streams=a_list(StreamJson), after=STRING_OR_NULL)},
    )
    async def streams(self, request: Request) -> Response:
        """The streams that match, a page at a time."""
        caller = self._context.caller(request)
        only(request, "pattern", "after", "limit")
        pattern = check_pattern(request.params.get("pattern", ">"))
        allow = caller.check_subscribe(pattern)
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        heads = await self._log.heads(pattern, after=request.params.get("after", ""), limit=limit)
        shown = [
            StreamJson(
                head.stream,
                head.next_index,
                f"{head.stream}:{head.chunk}:{head.offset}:{self._log.server}",
                head.last_id,
                timestamp(head.last_ms),
                head.subscribers,
            )
            for head in heads
            if allow is None or allow(head.stream)
        ]
        after = heads[-1].stream if len(heads) == limit else None
        return Response(200, _encode({"streams": shown, "after": after}))

    @operation(
        "List those who read now, with their lag.",
        answers={200: an_object(consumers=a_list(ConsumerJson), upto=INTEGER)},
    )
    async def consumers(self, request: Request) -> Response:
        """Everybody who is reading now, with the ids between them and the end of the log."""
        self._context.caller(request).check_admin("consumers")
        only(request)
        shown = [_consumer(feed) for feed in self._context.hub.feeds]
        return Response(200, _encode({"consumers": shown, "upto": self._context.hub.position}))


def _consumer(feed: Feed) -> ConsumerJson:
    who = feed.who
    return ConsumerJson(who.door, who.name, feed.patterns, feed.position, feed.lag, feed.behind)
