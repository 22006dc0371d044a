"""`GET /v1/read`, `/v1/streams`, `/v1/consumers`: what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from penstock.api.auth import Caller
from penstock.api.context import Context, flag, integer, milliseconds, only, readable
from penstock.api.describing import (
    BOOLEAN,
    CURSOR,
    INTEGER,
    STRING_OR_NULL,
    Parameter,
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
from penstock.api.v1.entry_json import EntryEncoder, EntryJson
from penstock.core.all_workers import Consumer, all_consumers
from penstock.core.busy_streams import StreamTraffic
from penstock.core.matching import matches
from penstock.core.names import check_name, check_pattern
from penstock.errors import Busy, InputInvalid, Trimmed
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import LARGE_PAGES, NAME_BYTES, PAGE_ENTRIES, SEARCHED_STREAMS, SHOWN_BYTES
from penstock.values import Entry, Head, Page
from penstock.wire.eventhorizon import CursorInvalid, parse_cursor, timestamp

LARGE_PAGE_BYTES: Final = 64 * 1024
"""Bytes of bodies from which on a page waits for its turn: its JSON takes a millisecond at most below that."""
REST: Final = 2
"""How many times as long as a large page took nobody begins with the next one: others have that time."""
_TIME: Final = {"type": "string", "format": "date-time"}
_encode = msgspec.json.Encoder().encode


class StreamJson(msgspec.Struct):
    """A stream in the list."""

    stream: str
    next_index: int
    cursor: str
    last_id: int
    last_time: str
    subscribers: tuple[str, ...]
    rate: float  # entries a second, lately: it halves in 30 s of silence


class LargePages:
    """Makes the JSON of large pages one after the other, with rests, so that they take a third of the loop together.

    A page whose JSON takes 13 ms is nothing. Of a hundred that are made one after the other, each publish would wait
    for a dozen: the threads that write and read need the interpreter several times for it.
    """

    def __init__(self, make: Callable[[Iterable[Entry]], bytes]) -> None:
        self._make = make
        self._turn, self._waiting = asyncio.Lock(), 0
        self._rested = 0.0  # time of the loop at which the next may be made

    async def make(self, page: Page) -> bytes:
        """The JSON of a page's entries; `Busy` if too many wait, each with its page in memory."""
        if sum(len(entry.body) for entry in page.entries) < LARGE_PAGE_BYTES:
            return self._make(page.entries)
        if self._waiting >= LARGE_PAGES:
            raise Busy("large pages at once", LARGE_PAGES)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._make_rested(page)
        finally:
            self._waiting -= 1

    async def _make_rested(self, page: Page) -> bytes:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rested - now())
        begun = now()
        data = self._make(page.entries)
        self._rested = now() + REST * (now() - begun)
        return data


class ReadApi:
    """Answers questions about the log."""

    def __init__(self, context: Context, traffic: StreamTraffic) -> None:
        self._context, self._traffic = context, traffic
        self._log = context.log
        self._shown = EntryEncoder(context.log.server)
        self._large = LargePages(self._shown.page)

    @operation(
        "Read a page: by stream= and from=, by cursor=, or by streams= and after= or since=.",
        query=(
            stream("stream", "Name of a stream; with from=."),
            number("from", "Index of the first entry."),
            text("cursor", "A cursor, as publish answers it.", pattern=CURSOR),
            patterns(),
            number("after", "Entries with greater ids only."),
            Parameter("since", "Instead of after=: what was published from this time on, and is still there.", _TIME),
            limit_parameter(),
            flag_parameter("meta", "true also shows meta entries and tombstones."),
        ),
        answers={200: an_object(entries=a_list(EntryJson), upto=INTEGER, more=BOOLEAN)},
        errors=(404, 410),
    )
    async def read(self, request: Request) -> Response:
        """A page by index, by cursor, or by id over a pattern."""
        caller = self._context.caller(request)
        only(request, "stream", "from", "cursor", "streams", "after", "since", "limit", "meta")
        ways = [name for name in ("stream", "cursor", "streams") if name in request.params]
        if len(ways) != 1:
            raise InputInvalid("parameters", "need exactly one of stream=, cursor= and streams=")
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        # Nonsense is refused, also where it is not asked for.
        integer(request, "from", 0), integer(request, "after", 0), _since_ms(request)
        way = {"stream": self._by_index, "cursor": self._by_cursor, "streams": self._by_id}[ways[0]]
        page = await way(request, caller, limit)
        entries = await self._large.make(page)
        body = b'{"entries":%b,"upto":%d,"more":%b}' % (
            entries,
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
        if "since" in request.params:
            page = await self._since(patterns, _since_ms(request), limit, meta=meta)
        else:
            page = await self._log.read_after(patterns, after, limit=limit, limit_bytes=SHOWN_BYTES, meta=meta)
        if allow is None:
            return page
        return Page(tuple(e for e in page.entries if allow(e.stream)), page.upto, page.more)

    async def _since(self, patterns: tuple[str, ...], ms: int, limit: int, *, meta: bool) -> Page:
        """The first page of what was published from a time on; where that was trimmed, of what is left."""
        after = await self._log.id_before(ms)
        try:
            return await self._log.read_after(patterns, after, limit=limit, limit_bytes=SHOWN_BYTES, meta=meta)
        except Trimmed as gone:
            after = gone.trimmed_upto
            return await self._log.read_after(patterns, after, limit=limit, limit_bytes=SHOWN_BYTES, meta=meta)

    @operation(
        "List streams, in order of their names or of their traffic.",
        query=(
            pattern("pattern", "Which ones; > is all."),
            text("search", "Those whose names have this in them, in any case.", most=NAME_BYTES),
            Parameter("sort", "traffic: the busiest first, and no further page.", {"enum": ["name", "traffic"]}),
            text("after", "Names after this one."),
            limit_parameter("Streams at most."),
        ),
        answers={200: an_object(streams=a_list(StreamJson), after=STRING_OR_NULL)},
    )
    async def streams(self, request: Request) -> Response:
        """The streams that match, a page at a time."""
        caller = self._context.caller(request)
        only(request, "pattern", "search", "sort", "after", "limit")
        pattern = check_pattern(request.params.get("pattern", ">"))
        allow, search = caller.check_subscribe(pattern), _search(request)
        limit = integer(request, "limit", 100, least=1, most=PAGE_ENTRIES)
        sort, after = request.params.get("sort", "name"), request.params.get("after", "")
        if sort not in ("name", "traffic"):
            raise InputInvalid("parameter sort", f"{sort[:40]!r} is neither name nor traffic")

        def wanted(stream: str) -> bool:
            return search in stream.casefold() and (allow is None or allow(stream))

        if sort == "traffic":
            heads, last = await self._busiest(pattern, wanted, limit), None
        else:
            heads, last = await self._named(pattern, wanted, after, limit, PAGE_ENTRIES if search else limit)
        return Response(200, _encode({"streams": [self._stream(head) for head in heads], "after": last}))

    async def _named(
        self, pattern: str, wanted: Callable[[str], bool], after: str, limit: int, page_size: int = PAGE_ENTRIES
    ) -> tuple[list[Head], str | None]:
        """Up to *limit* heads by name, and after which name to go on; it looks at a bounded number of streams."""
        found: list[Head] = []
        for _ in range(SEARCHED_STREAMS // page_size):
            page = await self._log.heads(pattern, after=after, limit=page_size)
            for head in page:
                after = head.stream
                if wanted(after):
                    found.append(head)
                    if len(found) == limit:
                        return found, after
            if len(page) < page_size:
                return found, None
        return found, after

    async def _busiest(self, pattern: str, wanted: Callable[[str], bool], limit: int) -> list[Head]:
        """Up to *limit* heads: those with traffic, the busiest first, then others by name."""
        rates = self._traffic.rates
        busy = [name for name in sorted(rates, key=rates.__getitem__, reverse=True) if matches(pattern, name)]
        names = [name for name in busy if wanted(name)][:limit]
        found = [head for name in names if (head := await self._log.head(name))]
        quiet, _ = await self._named(pattern, lambda name: name not in rates and wanted(name), "", limit)
        return [*found, *quiet][:limit]

    def _stream(self, head: Head) -> StreamJson:
        return StreamJson(
            head.stream,
            head.next_index,
            f"{head.stream}:{head.chunk}:{head.offset}:{self._log.server}",
            head.last_id,
            timestamp(head.last_ms),
            head.subscribers,
            round(self._traffic.rates.get(head.stream, 0.0), 3),
        )

    @operation(
        "List those who read now, with their lag.",
        answers={200: an_object(consumers=a_list(Consumer), upto=INTEGER, silent=INTEGER)},
    )
    async def consumers(self, request: Request) -> Response:
        """Everybody who is reading now, with the ids between them and the end of the log.

        *silent* workers did not answer, so their readers are missing.
        """
        self._context.caller(request).check_admin("consumers")
        only(request)
        shown = await all_consumers(self._context.hub, self._context.other_workers)
        answer = {"consumers": shown.told, "upto": self._context.hub.position, "silent": shown.silent}
        return Response(200, _encode(answer))


def _search(request: Request) -> str:
    text = request.params.get("search", "")
    if len(text) > NAME_BYTES:
        raise InputInvalid("parameter search", f"is longer than a name can be: {NAME_BYTES} characters")
    return text.casefold()


def _since_ms(request: Request) -> int:
    return milliseconds("parameter since", request.params.get("since", "1970-01-01"))
