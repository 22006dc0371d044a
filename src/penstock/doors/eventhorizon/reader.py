"""`/reader/*`: lines from a cursor on, and word of what moved, for pushers that run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.api.context import Context, only
from penstock.core.log import Log
from penstock.core.names import check_name
from penstock.doors.eventhorizon.requests import ReadRequest, check_subscription, read_cursor
from penstock.doors.eventhorizon.subscriptions import Subscriptions
from penstock.errors import NotFound
from penstock.http.output import Tap
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.limits import PAGE_ENTRIES, SHOWN_BYTES
from penstock.values import Entry, Kind
from penstock.wire.eventhorizon import Cursor, ReadLines, lines_of, raw_line
from penstock.wire.gojson import decode
from penstock.wire.http_chunks import chunk

_TEXT = "text/plain; charset=utf-8"
_LIVE_HEADERS = (("Content-Type", "application/x-ndjson"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


async def read_lines(log: Log, cursor: Cursor, limit: int = PAGE_ENTRIES) -> ReadLines:
    """At most *limit* lines from *cursor* on, never across a chunk. Without any, this is the end for now."""
    page = await log.read_cursor(cursor.stream, cursor.chunk, cursor.offset, limit=limit, limit_bytes=SHOWN_BYTES)
    here = str(Cursor(cursor.stream, cursor.chunk, cursor.offset, log.server))
    lines = lines_of(page.entries, log.server)
    more = page.more or (bool(lines) and lines[-1].meta_type == "Rotated")
    return ReadLines(here, lines, more, _ids(page.entries, len(lines)))


def _ids(entries: Sequence[Entry], count: int) -> list[int]:
    """One id for each line."""
    ids = [entry.id for entry in entries if entry.kind is Kind.DATA or entry.kind is Kind.META]
    return ids if len(ids) == count else [*ids, entries[-1].id]


class ReaderCalls:
    """Answers the calls that change nothing."""

    def __init__(self, context: Context, subscriptions: Subscriptions) -> None:
        self._context, self._subscriptions = context, subscriptions
        self._log = context.log

    async def read(self, request: Request) -> Response:
        """A page of lines."""
        asked, cursor = self._asked(request)
        found = await read_lines(self._log, cursor, asked.limit())
        return Response(200, msgspec.json.encode(found) + b"\n")

    async def liveread(self, request: Request) -> Response:
        """`/writer/liveread`: stored lines as they are, type byte and newline included, of a chunk still written to."""
        asked, cursor = self._asked(request)
        head = await self._log.head(cursor.stream)
        if head is None or head.chunk != cursor.chunk:
            raise NotFound("live chunk", str(cursor), code="chunk_missing", remedy="Read it with /reader/read.")
        limit = min(asked.max_lines_to_read or 0, PAGE_ENTRIES)
        if limit <= 0:
            return Response(200, b"", _TEXT)
        page = await self._log.read_cursor(cursor.stream, cursor.chunk, cursor.offset, limit=limit)
        return Response(200, b"".join(map(raw_line, page.entries)), _TEXT)

    def _asked(self, request: Request) -> tuple[ReadRequest, Cursor]:
        caller = self._context.caller(request)
        caller.check_subscribes()
        asked = decode(request.body, ReadRequest)
        cursor = read_cursor("Cursor", asked.cursor)
        caller.check_subscribe(check_name(cursor.stream))
        return asked, cursor

    def notify(self, request: Request) -> Response:
        """A line for every stream of a subscription that moved, as it moves: its newest cursor."""
        only(request, "subscription")
        id = check_subscription(request.params.get("subscription", ""))
        self._context.caller(request).check_subscribe(id)
        Notices(request, self._subscriptions, id)
        return LIVE


class Notices:
    """One open answer of `notify`. A reader that is slow hears of each stream's newest position only."""

    def __init__(self, request: Request, subscriptions: Subscriptions, id: str) -> None:
        self._frame = bytes if request.http10 else chunk
        self._waiting: dict[str, Cursor] = {}
        self._subscriptions, self._id = subscriptions, id
        self._tap: Tap = request.open(200, _LIVE_HEADERS, owner=self)
        self._tap.put(self._frame(b"{}\n"))  # whoever sees this misses nothing from here on
        subscriptions.watch(id, self._wake)

    def _wake(self, cursor: Cursor) -> None:
        self._waiting[cursor.stream] = cursor
        if not self._tap.full:
            self.drained()

    def drained(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            lines = b"".join(msgspec.json.encode({"Cursor": str(cursor)}) + b"\n" for cursor in waiting.values())
            self._tap.put(self._frame(lines))

    def lost(self) -> None:
        self._subscriptions.unwatch(self._id, self._wake)

    def token_ended(self) -> None:
        self.lost()
        self._tap.expire()
