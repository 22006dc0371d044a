"""A request for a channel that another node has: sent on to that node's internal listener, and its answer back.

Bytes go both ways as they come, and each side is stopped while the other does not take them. Once it is connected
no task is needed. The other node checks the rights itself, from the same headers and the same path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from penstock.core.liveness import Membership
from penstock.doors.trickle import answers
from penstock.doors.trickle.cluster import ChannelRecord
from penstock.errors import Busy, PeerError, PenstockError
from penstock.http.client import OutgoingError, Target, parse_url
from penstock.http.live_answer import Outlet
from penstock.http.problems import error_response
from penstock.http.requests import Request
from penstock.http.responses import Headers, Held, Response
from penstock.limits import BODY_BUFFER_BYTES
from penstock.wire.http_chunks import LAST_CHUNK, chunk
from penstock.wire.http_client import AnswerReader, request_head

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


class Forwarder:
    """Sends requests on, and breaks off those whose node is gone.

    A reader may wait for ever, so nothing has a deadline; and a node that loses its power, or its network, says no
    word: its connections stay open here. That the others count it as dead is what is heard of it.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._under_way: set[Forwarding] = set()
        members.on_change.append(self._look)

    async def forward(self, request: Request, record: ChannelRecord, *, body: bool = False) -> Response | Held:
        """Have the channel's owner answer; *body* says that the request's own is to be sent on."""
        if request.header(FORWARDED) is not None or not record.address:
            return error_response(Elsewhere(record.owner))
        target = Target(parse_url(record.address), allow_private=True, connect_timeout=CONNECT_SECONDS)
        head, owner = _head(request, target.url.authority, body), record.owner
        lived = owner in self._members.living()
        try:
            made = await target.connect(lambda: Forwarding(request, head, body, self._under_way.discard))
        except OutgoingError:
            return error_response(Elsewhere(owner))
        made.owner, made.lived = owner, lived
        if not made.ended:
            self._under_way.add(made)
            self._look_at(made)
        return made

    def _look(self) -> None:
        for one in list(self._under_way):
            self._look_at(one)

    def _look_at(self, one: Forwarding) -> None:
        """One that joined a moment ago may not be known here yet: only who was seen alive can be seen dead."""
        if one.owner in self._members.living():
            one.lived = True
        elif one.lived:
            one.break_off()


def _head(request: Request, host: str, body: bool) -> bytes:
    target = request.raw_path + (f"?{request.query}" if request.query else "")
    framing = ("Transfer-Encoding", "chunked") if body else ("Content-Length", "0")
    kept = (
        (name.decode(), value.decode(errors="surrogateescape"))
        for name, value in request.headers
        if name.startswith(_TAKEN)
    )
    return request_head(request.method, target, host, (framing, (FORWARDED.decode(), "1"), *kept))


class Forwarding(asyncio.Protocol, Held):
    """One request and its answer: a body sink and an owner of an outlet on this side, a protocol on the other."""

    owner, lived = "", False  # the member that answers, and whether it was ever seen alive here

    def __init__(self, request: Request, head: bytes, body: bool, over: Callable[[Forwarding], None]) -> None:
        """*over* is told when the connection has ended."""
        self._request: Request | None = request  # until it is answered
        self._head, self._body = head, body
        self._reader = AnswerReader(None, bodiless=request.method == "HEAD")
        self._interims = 0  # that were passed on
        self._transport = cast("asyncio.Transport", None)
        self._outlet: Outlet | None = None
        self._stuck, self._over, self.ended = False, over, False

    def break_off(self) -> None:
        """The owner will not answer any more."""
        self._transport.abort()

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
            self._answer(answers.error(error), close=True)
            self._transport.abort()  # the owner sees a publisher that is gone

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        if self._request is not None:
            self._request.want_body()

    # ── the answer ────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        reader, request = self._reader, self._request
        try:
            reader.feed(data)
        except PeerError:
            self._transport.abort()
            return
        while request is not None and self._interims < reader.interims:
            self._interims += 1
            request.interim()
        if request is not None and reader.headers.get("transfer-encoding") == "chunked" and not reader.bodiless:
            self._open(request)
        if self._outlet is not None:
            self._pass_on(self._outlet, reader.take())
        if reader.complete:
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._over(self)
        if self._outlet is not None:
            self._outlet.abort()  # in the middle: it must not look like the segment's end
        self._answer(error_response(Elsewhere("that broke off")), close=True)

    def _open(self, request: Request) -> None:
        """Begin an answer whose body follows as it comes."""
        self._request = None
        content_type = (("Content-Type", self._field("content-type")),)
        try:
            self._outlet = request.open(self._reader.status, content_type + self._headers(), owner=self)
        except PenstockError as error:  # its token has ended, or has too many open
            request.answer(error_response(error))
            self._transport.abort()

    def _pass_on(self, outlet: Outlet, piece: bytes) -> None:
        if piece:
            outlet.send(chunk(piece) if outlet.chunked else piece)
        if outlet.full:
            self._transport.pause_reading()

    def _complete(self) -> None:
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.close()
        body = self._reader.take()
        response = Response(self._reader.status, body, self._field("content-type"), self._headers())
        self._answer(response, close=self._field("connection") == "close")
        self._transport.close()

    def _field(self, name: str) -> str:
        return self._reader.headers.get(name, "")

    def _headers(self) -> Headers:
        return tuple((name.title(), value) for name, value in self._reader.headers.items() if not name.startswith(_OWN))

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
