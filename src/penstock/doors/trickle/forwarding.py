"""A request for a channel that another node has: sent on to that node's internal listener, and its answer back.

Bytes go both ways as they come, and each side is stopped while the other does not take them. Once it is connected
no task is needed. The other node checks the rights itself, from the same headers and the same path.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

import httptools

from penstock.doors.trickle.cluster import ChannelRecord
from penstock.errors import Busy, PenstockError
from penstock.http.exchange import Headers, Held, Request, Response
from penstock.http.flush import Outlet
from penstock.http.outgoing import parse_url
from penstock.http.problems import error_response
from penstock.limits import BODY_BUFFER_BYTES
from penstock.wire.http import LAST_CHUNK, chunk

FORWARDED: Final = b"lp-trickle-forwarded"
CONNECT_SECONDS: Final = 3.0
_TAKEN = (b"authorization", b"content-type", b"expect-content", b"lp-trickle-")
_OWN = ("connection", "transfer-encoding", "content-length", "date", "content-type", "access-control-")


class Elsewhere(Busy):
    """Another node has the channel, and cannot be asked from here."""

    code = "channel_elsewhere"

    def __init__(self, node: str) -> None:
        PenstockError.__init__(self, f"the channel is on node {node}, which cannot be reached from here")
        self.remedy = (
            "Try again: a recorded channel whose node is gone is taken over. Nodes need server.internal_listen."
        )


async def forward(request: Request, record: ChannelRecord, *, body: bool = False) -> Response | Held:
    """Have the channel's owner answer; *body* says that the request's own is to be sent on."""
    if request.header(FORWARDED) is not None or not record.address:
        return error_response(Elsewhere(record.owner))
    url = parse_url(record.address)
    forwarding = Forwarding(request, _head(request, url.origin.partition("//")[2], body), body)
    secure = ssl.create_default_context() if url.secure else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().create_connection(lambda: forwarding, url.host, url.port, ssl=secure)
    except (OSError, TimeoutError):
        return error_response(Elsewhere(record.owner))
    return forwarding


def _head(request: Request, host: str, body: bool) -> bytes:
    target = request.raw_path + (f"?{request.query}" if request.query else "")
    framing = b"Transfer-Encoding: chunked" if body else b"Content-Length: 0"
    kept = [b"%b: %b" % field for field in request.headers if field[0].startswith(_TAKEN)]
    first = f"{request.method} {target} HTTP/1.1\r\nHost: {host}".encode()
    return b"\r\n".join((first, framing, FORWARDED + b": 1", *kept, b"", b""))


class Forwarding(asyncio.Protocol, Held):
    """One request and its answer: a body sink and an owner of an outlet on this side, a protocol on the other."""

    def __init__(self, request: Request, head: bytes, body: bool) -> None:
        self._request: Request | None = request  # until it is answered
        self._head, self._body = head, body
        self._parser = httptools.HttpResponseParser(self)
        self._transport = cast("asyncio.Transport", None)
        self._fields: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._outlet: Outlet | None = None
        self._stuck = False

    # ── towards the owner ─────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(BODY_BUFFER_BYTES)
        self._transport.write(self._head)
        if self._body and self._request is not None:
            self._request.divert(self)

    @property
    def full(self) -> bool:
        return self._stuck

    def put(self, piece: bytes) -> None:
        if piece:
            self._transport.write(chunk(piece))

    def end(self, error: PenstockError | None) -> None:
        if error is None:
            self._transport.write(LAST_CHUNK)
        else:
            self._transport.abort()  # the owner sees a publisher that is gone

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        if self._request is not None:
            self._request.want_body()

    # ── the answer ────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._outlet is not None:
            self._outlet.abort()  # in the middle: it must not look like the segment's end
        self._answer(error_response(Elsewhere("that broke off")), close=True)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        request, status = self._request, self._parser.get_status_code()
        if request is None or status < 200:
            return
        if ("transfer-encoding", "chunked") in self._fields:
            self._request = None
            content_type = (("Content-Type", self._field("content-type")),)
            try:
                self._outlet = request.open(status, content_type + self._headers(), owner=self)
            except PenstockError as error:  # its token has ended, or has too many open
                request.answer(error_response(error))
                self._transport.abort()
        elif request.method == "HEAD":
            self._complete()

    def on_body(self, body: bytes) -> None:
        outlet = self._outlet
        if outlet is None:
            self._pieces.append(body)
            return
        outlet.send(chunk(body) if outlet.chunked else body)
        if outlet.full:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._fields.clear()
            if self._request is not None:
                self._request.interim()
        else:
            self._complete()

    def _complete(self) -> None:
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()
        close = self._field("connection") == "close"
        response = Response(
            self._parser.get_status_code(), b"".join(self._pieces), self._field("content-type"), self._headers()
        )
        self._answer(response, close=close)
        self._transport.close()

    def _field(self, name: str) -> str:
        return next((value for key, value in self._fields if key == name), "")

    def _headers(self) -> Headers:
        return tuple((name.title(), value) for name, value in self._fields if not name.startswith(_OWN))

    def _answer(self, response: Response, *, close: bool) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.answer(response, close=close)

    # ── as the owner of the outlet, and while it waits ────────────────────────────────────────

    def drained(self) -> None:
        self._transport.resume_reading()

    def lost(self) -> None:
        """Whoever asked is gone."""
        self._request = self._outlet = None
        self._transport.abort()

    def draining(self) -> None:
        """The server stops: an answer that has begun is cut, one that has not is refused."""
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.abort()
        self._answer(error_response(Busy("time before the server stops", 0)), close=True)
        self._transport.abort()
