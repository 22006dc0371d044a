"""One connection: bytes in, requests to handlers, answers out, in the order of the requests.

    PROXY ─▶ IDLE ⇄ HEAD ─▶ BUSY ─▶ IDLE …            a request at a time; what is sent ahead waits
                              ├──▶ LIVE ─▶ IDLE …      an outlet is open
                              ├──▶ SOCKET              a WebSocket, to the end
                              └──▶ DISCARD ─▶ closed   an answer that must get through to a peer that still sends

There is no task while nothing runs and no timer at all: deadlines are slots of the one wheel. While an
answer is live the connection holds neither a parser nor its request.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final, cast

from penstock.errors import PeerError, TooLarge
from penstock.http import answer_bytes
from penstock.http.answering import Phase
from penstock.http.bodies import Intake
from penstock.http.deadlines import TimedConnection
from penstock.http.receiving import FRAME_SLICE
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.routing import BodyKind
from penstock.http.shared import Shared
from penstock.limits import COUNTED_BODY_BYTES, INPUT_QUEUE_BYTES, UNREAD_BODY_BYTES
from penstock.wire import http_requests
from penstock.wire.proxy import forwarded_scheme, parse_proxy

log = logging.getLogger("penstock.http")

_PROXY, _IDLE, _HEAD, _BUSY = Phase.PROXY, Phase.IDLE, Phase.HEAD, Phase.BUSY
_LIVE, _SOCKET, _DISCARD, _CLOSED = Phase.LIVE, Phase.SOCKET, Phase.DISCARD, Phase.CLOSED


REQUESTS_PER_TURN: Final = 16
"""Requests of one connection, sent ahead and answered at once, after which others have their turn."""


class Connection(TimedConnection, asyncio.BaseProtocol):
    """One peer."""

    __slots__ = ("_address", "_looked")

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._address: str | None = None  # under which it is counted; None while it is not
        self._looked = 0  # bytes of the buffer that were searched for the end of a head

    # ── the transport's callbacks ─────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self.transport = cast("asyncio.Transport", transport)
        self._peer = address = _peer_address(transport)
        if shared.draining:  # accepted at the last moment: it would be waited for, and served by nobody
            self.cut()
            return
        self._trusted = address in shared.trusted
        # A proxy stands for many: it counts for the client that a PROXY header names, else in the sum alone.
        limit = shared.caps.admit("" if self._trusted else address)
        if limit:
            self._turn_away(limit)
            return
        self._address = "" if self._trusted else address
        shared.counters.opened += 1
        shared.connections.add(self)
        secure = transport.get_extra_info("sslcontext") is not None
        # Pausing at the first byte held back tells exactly when the socket takes bytes again. (The TLS
        # transport pauses at, not above, its mark.)
        self.transport.set_write_buffer_limits(1 if secure else 0, 0)
        if not secure:
            self.borrow()
        self.phase = _PROXY if shared.settings.proxy_protocol and self._trusted else _IDLE
        # A client may connect ahead of what it will ask: until its first byte it is idle, not slow.
        self._arm_for_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        live = self.phase is _LIVE or self.phase is _SOCKET
        self.let_go()
        self.phase, self.out, self.queued, self.stuck = _CLOSED, None, 0, False
        self._buffer = b""
        self._head = self._request = None
        self._end_booking()
        self._end_unread()
        if self._address is not None:
            self._leave(self._address)
        work, self._work = self._work, None
        if isinstance(work, asyncio.Task):
            work.cancel()  # a bare future belongs to whoever made it, and is left alone
        elif isinstance(work, Held):
            work.lost()
        if self._intake is not None and self._intake.stream is not None:
            self._intake.stream.end(PeerError(400, "the peer left in the middle of the body"))
        self._intake = None
        tap, self.tap = self.tap, None
        if live and tap is not None:
            self._uncount_live()
            tap.broken()

    def _turn_away(self, limit: str) -> None:
        """Too many: say nothing, an answer would cost more than the connection."""
        self._shared.counters.refused += 1
        log.info("connection.refused", extra={"peer": self._peer, "limit": limit})
        self.cut()

    def _leave(self, address: str) -> None:
        shared = self._shared
        self._address = None
        shared.caps.release(address)
        shared.counters.closed += 1
        shared.wheel.forget(self)
        shared.connections.discard(self)
        if not shared.connections:
            shared.emptied.set()

    def data_received(self, data: bytes) -> None:
        shared, phase = self._shared, self.phase
        shared.counters.bytes_in += len(data)
        if phase is _IDLE and not self._buffer:
            head = self._latest
            if head is None or not data.startswith(head.raw):  # to compare takes less than to look it up
                raw = data[: data.find(b"\r\n\r\n") + 4]
                head = shared.parser.known.get(raw) or shared.parser.parse_like(raw)
            if head is not None and head.route is not None and self._is_free():
                end = len(head.raw)
                if head.length == len(data) - end:
                    self._take_again(head, data[end:])
                    return
        if phase is _SOCKET and not self._buffer and len(data) <= FRAME_SLICE:
            self._take_frames(data)
            self._regulate()
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._intake is not None:
            self._take_body()
        elif phase is _DISCARD:
            self._buffer = b""
        self._advance()

    def eof_received(self) -> bool:
        """The peer sends no more. What it has asked for completely is still answered, if that has a deadline.

        A peer that left looks just the same, and a long poll would wait for nobody.
        """
        self._eof = True
        if self._taking and (self.phase is _IDLE or self.phase is _HEAD):
            return True  # what it has sent ahead is gone on with in the next turn
        if self._request is not None:
            return self._intake is None and self._request.bounded
        if self.phase is _IDLE and self._buffer and not self.ending:
            return True  # requests that wait until more of their answers is written
        if self.out is not None or self.stuck:
            self.end()
            return True
        return False

    def pause_writing(self) -> None:
        self.stuck = True
        if self.tap is not None:
            self.tap.block()
        self._mark = self.transport.get_write_buffer_size()
        self._shared.wheel.arm(self, self._shared.settings.stall_timeout)

    def resume_writing(self) -> None:
        self.stuck = False  # before the deadline is chosen: this one is over
        self._arm_for_phase()
        self.unstick()
        self._end_unread()
        self._regulate()
        self._advance()

    # ── input ─────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> None:
        """Go on with what waits in the buffer, as far as the phase allows."""
        requests = 0
        while self._buffer:
            phase = self.phase
            if phase is _IDLE or phase is _HEAD:
                if self.ending or self._must_let_others(requests) or self._must_write_first() or not self._take_head():
                    break
                requests += 1
            elif phase is _SOCKET:
                if not self._take_frames_in_turn():
                    break
            elif phase is not _PROXY or not self._take_proxy_header():
                break
        self._regulate()

    def _is_free(self) -> bool:
        """Nothing is in the way of a request that came whole, and the peer speaks for itself."""
        return self.out is None and not (self.stuck or self.ending or self._trusted)

    def _take_again(self, head: http_requests.RequestHead, body: bytes) -> None:
        """Begin a whole request whose head was here before, to the byte: what is known of it holds again."""
        shared, route = self._shared, head.route
        shared.counters.requests += 1
        self.phase, self.due = _BUSY, 0
        self._head = self._latest = head
        self._keep_alive, self._route = head.keep_alive, route
        request = self._request = Request(self, head, self._peer, shared.scheme)
        request.captures, request.body = head.captures, body
        self._call(route, request)

    def _must_let_others(self, requests: int) -> bool:
        """So many were answered in this turn that the next one waits for the next turn."""
        if requests >= REQUESTS_PER_TURN and not self._taking:
            self._go_on_soon()
        return self._taking

    def _must_write_first(self) -> bool:
        """Too much output waits to begin another request: a client may ask faster than it reads."""
        if self.pending <= INPUT_QUEUE_BYTES:
            return False
        if not self.stuck:
            self._shared.loop.call_soon(self._go_on)  # the flush is booked already and comes before it
        return True

    def _take_proxy_header(self) -> bool:
        try:
            header = parse_proxy(self._buffer)
        except PeerError as error:
            log.info("proxy.malformed", extra={"peer": self._peer, "reason": error.detail})
            self.cut()
            return False
        if header is None:
            return False
        self._buffer = self._buffer[header.size :]
        self.phase = _IDLE
        self._arm_for_phase()  # the proxy has spoken, its client may be ahead of what it will ask
        if header.address:
            return self._stand_for(header.address)
        return True

    def _stand_for(self, address: str) -> bool:
        """From here on this is the connection of *address*."""
        caps = self._shared.caps
        trusted = address in self._shared.trusted  # another proxy, that forwards for others
        counted = "" if trusted else address
        caps.release(cast("str", self._address))
        limit = caps.admit(counted)
        self._peer, self._trusted = address, trusted
        if limit:
            caps.admit("")
            self._turn_away(limit)
            return False
        self._address = counted
        return True

    def _take_head(self) -> bool:
        """Begin the next request, if its head is complete."""
        if self.phase is _IDLE and self._buffer.startswith(b"\r\n"):
            self._buffer = self._buffer.lstrip(b"\r\n")  # robustness towards old clients (RFC 9112, 2.2)
            return bool(self._buffer)
        shared, raw = self._shared, self._buffer
        try:
            end = http_requests.find_head_end(self._buffer, self._looked)
            if end < 0:
                self._looked = len(self._buffer)
                if self._eof:
                    self.end()  # the rest never comes
                elif self.phase is _IDLE:
                    self.phase = _HEAD
                    shared.wheel.arm(self, shared.settings.head_timeout)
                return False
            raw, self._buffer, self._looked = self._buffer[:end], self._buffer[end:], 0
            head = shared.parser.parse(raw)
        except PeerError as error:
            self._refuse(error, raw)
            return False
        shared.counters.requests += 1
        self.phase = _BUSY
        self.due = 0  # what was waited for is here
        self._begin(head)
        return True

    def _begin(self, head: http_requests.RequestHead) -> None:
        """Find out who answers, and what is to be done with the body first."""
        shared = self._shared
        self._head = head
        self._keep_alive = head.keep_alive
        request = self._request = self._make_request(head)
        try:
            if shared.settings.requests_per_address:
                shared.caps.request_of_address(request.peer, shared.loop.time())
            route = answer_bytes.resolve(shared, request)
            if isinstance(route, Response):
                self._answer_early(route)
                return
            if head.length > route.body.limit:
                raise TooLarge("request body bytes", head.length, route.body.limit)
            if route.admit is not None and (head.chunked or head.length > len(self._buffer)):
                route.admit(request)
            if head.length > COUNTED_BODY_BYTES and route.body.kind is BodyKind.WHOLE:
                self._book(request.peer, head.length)
        except Exception as error:  # noqa: BLE001 - whatever the table or `admit` raises becomes the answer
            self._answer_early(answer_bytes.early_problem(shared, request, error))
            return
        self._route = route
        whole = not head.chunked and head.length <= COUNTED_BODY_BYTES and route.body.kind is not BodyKind.STREAM
        if whole and not shared.settings.requests_per_address:
            head.route, head.captures = route, request.captures
        if head.has_body:
            self._begin_body(head, route, request)
        else:
            self._call(route, request)

    def _make_request(self, head: http_requests.RequestHead) -> Request:
        shared = self._shared
        peer, scheme = self._peer, shared.scheme
        if self._trusted:
            peer = shared.trusted.client(peer, [v for n, v in head.headers if n == b"x-forwarded-for"])
            scheme = forwarded_scheme([v for n, v in head.headers if n == b"x-forwarded-proto"], scheme)
        return Request(self, head, peer, scheme)

    def _answer_early(self, response: Response) -> None:
        """Answer before the body was read. A small body is read and dropped; with a large one the connection ends."""
        head = cast("http_requests.RequestHead", self._head)
        if head.has_body:
            intake = self._intake = Intake(head, UNREAD_BODY_BYTES, self._shared.settings.body_timeout)
            intake.dropped = True
            if head.length > UNREAD_BODY_BYTES or head.expects_continue:
                self._keep_alive = False
        self._answer(response)
        if self._intake is not None and self._buffer:
            self._take_body()

    def _go_on(self) -> None:
        if self.phase is not _CLOSED:
            if self._intake is not None and self._buffer:
                self._take_body()
            self._advance()

    def drain(self) -> None:
        """The server is about to stop: finish what was begun, begin nothing."""
        if self.tap is not None and (self.phase is _LIVE or self.phase is _SOCKET):
            self.tap.draining()
        elif isinstance(self._work, Held):
            self._work.draining()
        elif self.phase is _IDLE or self.phase is _PROXY:
            self.end()


class PlainConnection(Connection, asyncio.Protocol):
    """One without TLS: the loop makes bytes of what the socket has."""

    __slots__ = ()


class SecureConnection(Connection, asyncio.BufferedProtocol):
    """One with TLS. Without a buffer of ours the loop would make room for 256 KB at each look for a few bytes."""

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all: what is put into it is taken before the next connection reads."""
        return self._shared.decrypted

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.decrypted[:nbytes]))


def _peer_address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return sys.intern(name[0]) if name else ""  # thousands of wires may come from one address
