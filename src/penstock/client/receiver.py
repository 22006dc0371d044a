"""The app side of the pusher protocol: lines come in, and are applied exactly once and in order.

    def handle(stream: str, line: Line, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO orders VALUES (?, ?)", (stream, line.content))

    app = Receiver("/_sub/billing", lambda: sqlite3.connect("app.db"), handle, auth="8c382056")

`app` is an ASGI application (and `app.wsgi` a WSGI one) for the one path that a pusher posts to. What the
handler writes through *connection* and the new position are committed in one transaction of the app's own
database. That is the whole secret: whatever is killed and whenever, the position and the data agree, and
the pusher goes on from the position that the app tells it.

The connection may be of any DB-API 2.0 driver, but not in autocommit mode. The handler must not commit, roll
back, or do anything outside that it could not do twice: a push whose transaction fails comes again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from penstock.client.receiver_offsets import OFFSETS_TABLE, DatabaseConnection, DatabaseFailed, Offsets, Refusal
from penstock.errors import InputInvalid
from penstock.limits import NAME_BYTES
from penstock.wire import webhooks
from penstock.wire.eventhorizon import (
    INCORRECT_BASE_OFFSET,
    INCORRECT_SUBSCRIPTION_ID,
    SUBSCRIPTIONS,
    SUCCESS,
    Cursor,
    CursorInvalid,
    Line,
    PushAnswer,
    PushLines,
    PushRequest,
    mentioned,
    parse_cursor,
)

__all__ = ["Line", "Receiver", "parse_event"]

log = logging.getLogger("penstock.receiver")

Handler = Callable[[str, Line, Any], None]
LinesHandler = Callable[[str, list[Line], Any], None]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_EVENT = re.compile(r"([A-Za-z]+) (\{.*)", re.DOTALL)
_requests = msgspec.json.Decoder(PushRequest)


class Reply(NamedTuple):
    """An answer to one request."""

    status: int
    body: bytes
    content_type: str = "application/json"


class Rejected(Refusal):
    """The push cannot be taken as it is; nothing of it was."""


def parse_event(content: str) -> tuple[str, str]:
    """Type and JSON text of a line of the form `OrderPlaced {"item":"boots"}`; ValueError for others."""
    found = _EVENT.fullmatch(content)
    if not found:
        raise ValueError(f"{content[:60]!r} is not of the form 'Type {{json}}'")
    return found[1], found[2]


class Receiver:
    """One app's endpoint. Pushes are applied one after the other, in a thread with a connection of its own."""

    def __init__(
        self,
        subscription_id: str,
        connect: Callable[[], DatabaseConnection],
        handler: Handler | None = None,
        *,
        lines_handler: LinesHandler | None = None,
        auth: str = "",
        secret: str = "",
        table: str = OFFSETS_TABLE,
        limit_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """Say who the app is and what to do with lines: one by one (*handler*), or all of a push at once.

        *auth* is the token that a pusher's URL must carry as `?auth=`; *secret* is one of Standard Webhooks,
        which the pusher signs with. Give at least one of them where others can reach the endpoint.
        """
        if not subscription_id.startswith(SUBSCRIPTIONS):
            raise InputInvalid("subscription id", f"does not begin with {SUBSCRIPTIONS}")
        if (handler is None) == (lines_handler is None):
            raise InputInvalid("handler", "give either handler or lines_handler")
        if not table.isidentifier():
            raise InputInvalid("table", f"{table!r} is not a name")
        self.subscription_id = subscription_id
        self._handle = lines_handler or _one_by_one(handler)
        self._auth, self._limit_bytes = auth.encode(), limit_bytes
        self._key = webhooks.parse_secret(secret) if secret else None
        self._offsets = Offsets(connect, table)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="receiver")
        self._turn, self._closed = Lock(), False

    def close(self) -> None:
        """Finish the push in progress and close the connection. Pushes that come later are refused."""
        with self._turn:
            if not self._closed:
                self._thread.submit(self._offsets.close)
            self._closed = True
        self._thread.shutdown()

    def _begin(self, query: str, headers: dict[str, str], body: bytes) -> Future[Reply] | None:
        """Take one push in the receiver's thread; None if it is closed."""
        with self._turn:
            return None if self._closed else self._thread.submit(self.answer, query, headers, body)

    # ── the two ways in ────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, as an ASGI application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        body = await _body(receive, self._limit_bytes)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        reply = await self._reply(scope["query_string"].decode("latin-1"), headers, body)
        head = [
            (b"content-type", reply.content_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, query: str, headers: dict[str, str], body: bytes | None) -> Reply:
        if body is None:
            return _text(413, f"a push has at most {self._limit_bytes} bytes")
        begun = self._begin(query, headers, body)
        return _ENDING if begun is None else await asyncio.wrap_future(begun)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                self.close()
                return

    def wsgi(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request, as a WSGI application."""
        size = int(environ.get("CONTENT_LENGTH") or 0)
        headers = {
            name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")
        }
        if size > self._limit_bytes:
            reply = _text(413, f"a push has at most {self._limit_bytes} bytes")
        else:
            body, query = environ["wsgi.input"].read(size), environ.get("QUERY_STRING", "")
            begun = self._begin(query, headers, body)
            reply = _ENDING if begun is None else begun.result()
        head = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))]
        start_response(f"{reply.status} {'OK' if reply.status == 200 else 'Error'}", head)
        return [reply.body]

    # ── one request ────────────────────────────────────────────────────────────────────────────

    def answer(self, query: str, headers: dict[str, str], body: bytes) -> Reply:
        """Take one push, in the calling thread, which must always be the same one."""
        if refusal := self._refusal(query, headers, body):
            return refusal
        try:
            request = _requests.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _text(400, f"not a push: {error}")
        try:
            return Reply(200, self._take(request).encode())
        except Rejected as error:
            return _text(400, str(error))
        except DatabaseFailed as error:
            log.exception("receiver.database_failed")
            return _text(503, f"the app's database failed: {error}")

    def _refusal(self, query: str, headers: dict[str, str], body: bytes) -> Reply | None:
        given = parse_qs(query).get("auth", [""])[-1].encode()
        if self._auth and not hmac.compare_digest(given, self._auth):
            return _text(401, "wrong or missing auth")
        if self._key is not None:
            try:
                webhooks.verify(self._key, headers, body, time.time())
            except webhooks.SignatureInvalid as error:
                return _text(401, str(error))
        return None

    def _take(self, request: PushRequest) -> PushAnswer:
        if request.subscription_id != self.subscription_id:
            return PushAnswer(INCORRECT_SUBSCRIPTION_ID, correct_subscription_id=self.subscription_id)
        if request.push is None:
            raise Rejected("Push is missing")
        begin = _cursor(request.push.from_offset, "FromOffset")
        return self._offsets.in_transaction(lambda: self._apply(begin, request.push))

    def _apply(self, begin: Cursor, push: PushLines | None) -> tuple[PushAnswer, bool]:
        """The answer, and whether there is something to commit."""
        stream, lines = begin.stream, (push.lines if push else None) or []
        own = self._offsets.locked(stream) if begin.offset >= 0 else self._offsets.get(stream)
        if not begin.same_place(own):
            return PushAnswer(INCORRECT_BASE_OFFSET, str(own)), False
        taken, behind = self._acceptable(lines)
        accepted = _cursor(taken[-1].ptr_after, "PtrAfter") if taken else own
        if accepted.stream != stream:
            raise Rejected(f"PtrAfter is of {accepted.stream!r}, the push of {stream!r}")
        if taken:
            self._call_handler(stream, taken)
            self._offsets.set(accepted)
        cursors = [str(cursor) for cursor in behind.values()]
        return PushAnswer(SUCCESS, str(accepted), behind_cursors=cursors), bool(taken)

    def _acceptable(self, lines: list[Line]) -> tuple[list[Line], dict[str, Cursor]]:
        """The lines before the first that tells of a stream we are behind in; and all such streams."""
        behind: dict[str, Cursor] = {}
        count = 0
        for line in lines:
            if line.meta_type == "SubscriptionActivity":
                self._compare(line, behind)
            if not behind:
                count += 1
        return lines[:count], behind

    def _compare(self, line: Line, behind: dict[str, Cursor]) -> None:
        try:
            told = mentioned(line)
        except CursorInvalid as error:
            raise Rejected(f"activity: {error}") from None
        for cursor in told:
            if cursor.stream not in behind:
                own = self._offsets.get(cursor.stream)
                if cursor.ahead_of(own):
                    behind[cursor.stream] = own

    def _call_handler(self, stream: str, lines: list[Line]) -> None:
        try:
            self._handle(stream, lines, self._offsets.connection)
        except Exception as error:  # whatever the app's code raises: its transaction is rolled back
            log.exception("receiver.handler_failed", extra={"stream": stream})
            raise Rejected(f"the handler failed: {type(error).__name__}: {error}") from error


def _one_by_one(handler: Handler | None) -> LinesHandler:
    def handle(stream: str, lines: list[Line], connection: Any) -> None:
        for line in lines:
            handler(stream, line, connection)  # type: ignore[misc]  # one of the two was given

    return handle


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None if it is over the limit."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > limit:
            parts.clear()
    return None if size > limit else b"".join(parts)


def _cursor(text: str, what: str) -> Cursor:
    try:
        cursor = parse_cursor(text)
    except CursorInvalid as error:
        raise Rejected(f"{what}: {error}") from None
    if not 0 < len(cursor.stream.encode()) <= NAME_BYTES or not cursor.stream.isprintable():
        raise Rejected(f"{what}: {cursor.stream[:80]!r} is not the name of a stream")
    return cursor


def _text(status: int, message: str) -> Reply:
    return Reply(status, message.encode() + b"\n", "text/plain; charset=utf-8")


_ENDING = _text(503, "the app is about to end")
