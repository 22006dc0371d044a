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
from typing import cast

from websockets.frames import CloseCode

from penstock.errors import PeerError, PenstockError, TooLarge
from penstock.http import answers
from penstock.http.answering import CLOSE_SECONDS, Phase
from penstock.http.body import BodyStream, Intake
from penstock.http.exchange import Held, Request, Response
from penstock.http.framing import FRAME_SLICE, Framing
from penstock.http.routing import BodyKind, Route
from penstock.http.service import Service
from penstock.http.websocket import WebSocket
from penstock.limits import (
    BODY_PROGRESS_BYTES,
    COUNTED_BODY_BYTES,
    INPUT_QUEUE_BYTES,
    PIPELINED_BYTES,
    UNREAD_BODY_BYTES,
)
from penstock.wire import http
from penstock.wire.proxy import forwarded_scheme, parse_proxy

log = logging.getLogger("penstock.http")

_PROXY, _IDLE, _HEAD, _BUSY = Phase.PROXY, Phase.IDLE, Phase.HEAD, Phase.BUSY
_LIVE, _SOCKET, _DISCARD, _CLOSED = Phase.LIVE, Phase.SOCKET, Phase.DISCARD, Phase.CLOSED


class Connection(Framing, asyncio.BaseProtocol):
    """One peer."""

    __slots__ = ("_address", "_looked", "_paused")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._address: str | None = None  # under which it is counted; None while it is not
        self._looked = 0  # bytes of the buffer that were searched for the end of a head
        self._paused = False

    # ── the transport's callbacks ─────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self._service
        self.transport = cast("asyncio.Transport", transport)
        self._peer = address = _peer_address(transport)
        if service.draining:  # accepted at the last moment: it would be waited for, and served by nobody
            self.cut()
            return
        self._trusted = address in service.trusted
        # A proxy's address is nobody's: it counts under the client that a PROXY header names, or in all only.
        limit = service.caps.admit("" if self._trusted else address)
        if limit:
            self._turn_away(limit)
            return
        self._address = "" if self._trusted else address
        service.counters.opened += 1
        service.connections.add(self)
        secure = transport.get_extra_info("sslcontext") is not None
        # Pausing at the first byte held back tells exactly when the socket takes bytes again. (The TLS
        # transport pauses at, not above, its mark.)
        self.transport.set_write_buffer_limits(1 if secure else 0, 0)
        if not secure:
            self.borrow()
        self.phase = _PROXY if service.settings.proxy_protocol and self._trusted else _IDLE
        # A client may connect ahead of what it will ask: until its first byte it is idle, not slow.
        self._arm_for_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        live = self.phase is _LIVE or self.phase is _SOCKET
        self.let_go()
        self.phase, self.out, self.queued, self.stuck = _CLOSED, None, 0, False
        self._buffer = b""
        self._head = self._request = None
        self._end_booking()
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
        self._service.counters.refused += 1
        log.info("connection.refused", extra={"peer": self._peer, "limit": limit})
        self.cut()

    def _leave(self, address: str) -> None:
        service = self._service
        self._address = None
        service.caps.release(address)
        service.counters.closed += 1
        service.wheel.forget(self)
        service.connections.discard(self)
        if not service.connections:
            service.emptied.set()

    def data_received(self, data: bytes) -> None:
        service, phase = self._service, self.phase
        service.counters.bytes_in += len(data)
        if phase is _IDLE and not self._buffer:
            end = data.find(b"\r\n\r\n") + 4
            head = service.parser.known.get(data[:end])
            if head is not None and head.route is not None and head.length == len(data) - end and self._is_free():
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
        if self._request is not None:
            return self._intake is None and self._request.bounded
        if self.out is not None or self.stuck:
            self.end()
            return True
        return False

    def pause_writing(self) -> None:
        self.stuck = True
        if self.tap is not None:
            self.tap.clear = None
        self._mark = self.transport.get_write_buffer_size()
        self._service.wheel.arm(self, self._service.settings.stall_timeout)

    def resume_writing(self) -> None:
        self.stuck = False  # before the deadline is chosen: this one is over
        self._arm_for_phase()
        self.unstick()
        self._regulate()
        self._advance()

    # ── input ─────────────────────────────────────────────────────────────────────────────────

    def _advance(self) -> None:
        """Go on with what waits in the buffer, as far as the phase allows."""
        while self._buffer:
            phase = self.phase
            if phase is _IDLE or phase is _HEAD:
                if self.ending or self._must_write_first() or not self._take_head():
                    break
            elif phase is _SOCKET:
                if not self._take_frames_in_turn():
                    break
            elif phase is not _PROXY or not self._take_proxy_header():
                break
        self._regulate()

    def _is_free(self) -> bool:
        """Nothing is in the way of a request that came whole, and the peer speaks for itself."""
        return self.out is None and not (self.stuck or self.ending or self._trusted)

    def _take_again(self, head: http.Head, body: bytes) -> None:
        """Begin a whole request whose head was here before, to the byte: what is known of it holds again."""
        service, route = self._service, head.route
        service.counters.requests += 1
        self.phase, self.due = _BUSY, 0
        self._head, self._keep_alive, self._door = head, head.keep_alive, route.door
        request = self._request = Request(self, head, self._peer, service.scheme)
        request.captures, request.body = head.captures, body
        self._call(route, request)

    def _must_write_first(self) -> bool:
        """Too much output waits to begin another request: a client may ask faster than it reads."""
        if self.pending <= INPUT_QUEUE_BYTES:
            return False
        if not self.stuck:
            self._service.loop.call_soon(self._go_on)  # the flush is booked already and comes before it
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
        caps = self._service.caps
        trusted = address in self._service.trusted  # another proxy, that forwards for others
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
        service, raw = self._service, self._buffer
        try:
            end = http.find_head_end(self._buffer, self._looked)
            if end < 0:
                self._looked = len(self._buffer)
                if self.phase is _IDLE:
                    self.phase = _HEAD
                    service.wheel.arm(self, service.settings.head_timeout)
                return False
            raw, self._buffer, self._looked = self._buffer[:end], self._buffer[end:], 0
            head = service.parser.parse(raw)
        except PeerError as error:
            self._refuse(error, raw)
            return False
        service.counters.requests += 1
        self.phase = _BUSY
        self.due = 0  # what was waited for is here
        self._begin(head)
        return True

    def _refuse(self, error: PeerError, head: bytes = b"") -> None:
        """Answer something that was no request, and end the connection: nobody knows where it would go on."""
        log.info("request.refused", extra={"peer": self._peer, "status": error.status, "reason": error.detail})
        self._buffer = b""
        self._keep_alive = False
        self._intake = None
        self.write(answers.refusal(self._service, error, head))
        self.hang_up()

    def _begin(self, head: http.Head) -> None:
        """Find out who answers, and what is to be done with the body first."""
        service = self._service
        self._head = head
        self._keep_alive = head.keep_alive
        request = self._request = self._make_request(head)
        try:
            if service.settings.requests_per_address:
                service.caps.request_of_address(request.peer, service.loop.time())
            route = answers.resolve(service, request)
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
            self._answer_early(answers.early_problem(service, request, error))
            return
        self._door = route.door
        whole = not head.chunked and head.length <= COUNTED_BODY_BYTES and route.body.kind is not BodyKind.STREAM
        if whole and not service.settings.requests_per_address:
            head.route, head.captures = route, request.captures
        if head.has_body:
            self._begin_body(head, route, request)
        else:
            self._call(route, request)

    def _make_request(self, head: http.Head) -> Request:
        service = self._service
        peer, scheme = self._peer, service.scheme
        if self._trusted:
            peer = service.trusted.client(peer, [v for n, v in head.headers if n == b"x-forwarded-for"])
            scheme = forwarded_scheme([v for n, v in head.headers if n == b"x-forwarded-proto"], scheme)
        return Request(self, head, peer, scheme)

    def _answer_early(self, response: Response) -> None:
        """Answer before the body was read: a small one is read and dropped, before a large one we hang up."""
        head = cast("http.Head", self._head)
        if head.has_body:
            intake = self._intake = Intake(head, UNREAD_BODY_BYTES, self._service.settings.body_timeout)
            intake.dropped = True
            if head.length > UNREAD_BODY_BYTES or head.expects_continue:
                self._keep_alive = False
        self._answer(response)
        if self._intake is not None and self._buffer:
            self._take_body()

    # ── bodies ────────────────────────────────────────────────────────────────────────────────

    def _begin_body(self, head: http.Head, route: Route, request: Request) -> None:
        kind = route.body.kind
        if kind is not BodyKind.STREAM and 0 < head.length <= len(self._buffer):
            # The usual small body came with its head.
            request.body, self._buffer = self._buffer[: head.length], self._buffer[head.length :]
            self._call(route, request)
            return
        timeout = self._service.settings.body_timeout if route.body_timeout == -1.0 else route.body_timeout
        intake = self._intake = Intake(head, route.body.limit, timeout)
        intake.route = route
        if kind is BodyKind.STREAM:
            intake.stream = request._stream = BodyStream(self._body_wanted)
            self._arm_for_phase()
            self._call(route, request)
        else:
            intake.dropped = kind is BodyKind.NONE
            intake.booking = self._book(request.peer, 0) if head.chunked else None
            self._body_wanted()
            self._arm_for_phase()
        if self._buffer and self._intake is not None:
            self._take_body()

    def _body_wanted(self) -> None:
        """Somebody waits for the body: let it come."""
        if self._head is not None and self._head.expects_continue:
            self._head.expects_continue = False
            if not self._intake_begun():
                self.write(http.CONTINUE)
        self._regulate()

    def _intake_begun(self) -> bool:
        return self._intake is None or self._intake.received > 0 or bool(self._buffer)

    def _take_body(self) -> None:
        """Feed the body from the buffer; at its end go on with whoever waits for it."""
        if self._taking:
            return
        intake = cast("Intake", self._intake)
        size = intake.slice
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        try:
            rest = intake.feed(data)
        except PenstockError as error:
            self._buffer = b""  # nobody knows what it is a part of
            self._body_failed(intake, error)
            return
        if rest is None:
            if self._buffer:
                self._go_on_soon()
            self._regulate()
            return
        self._intake, self._buffer = None, rest + self._buffer
        if intake.stream is not None:
            intake.stream.end()
        if self._head is None:  # answered already: the body was only read to get past it
            self._ready_for_next()
        elif intake.stream is None:
            request = cast("Request", self._request)
            request.body = bytes(intake.held)
            self._call(cast("Route", intake.route), request)
        else:
            self._arm_for_phase()

    def _body_failed(self, intake: Intake, error: PenstockError) -> None:
        """The body is broken or too large: the handler hears it, the peer gets an answer, the connection ends."""
        self._intake = None
        self._keep_alive = False
        if intake.stream is not None:
            intake.stream.end(error)  # its handler answers
        elif self._head is None:
            self.hang_up()
        else:
            self._answer(answers.early_problem(self._service, cast("Request", self._request), error))

    # ── readiness, reading and deadlines ──────────────────────────────────────────────────────

    def _ready_for_next(self) -> None:
        self.phase = _IDLE
        self._keep_alive = True
        if self.stuck:
            self._arm_for_phase()
        else:
            self._service.wheel.arm_ticks(self, self._service.idle_ticks)

    def _go_on(self) -> None:
        if self.phase is not _CLOSED:
            if self._intake is not None and self._buffer:
                self._take_body()
            self._advance()

    def _regulate(self) -> None:
        """Read from the peer exactly while there is room for what it sends."""
        wait = self._must_wait()
        if wait == self._paused or self.phase is _CLOSED or self.transport.is_closing():
            return
        self._paused = wait
        if wait:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _must_wait(self) -> bool:
        if self._owes_too_much():
            return True
        intake = self._intake
        if intake is not None:
            return (intake.stream is not None and intake.stream.full) or len(self._buffer) >= PIPELINED_BYTES
        return len(self._buffer) >= PIPELINED_BYTES

    def _arm_for_phase(self) -> None:
        """Book the deadline of what is being waited for now, if that has one."""
        seconds = self._deadline()
        if seconds is None:
            self.due = 0
        else:
            self._service.wheel.arm(self, seconds)

    def _deadline(self) -> float | None:
        settings = self._service.settings
        if self.stuck:
            self._mark = self.transport.get_write_buffer_size()
            return settings.stall_timeout
        if self._intake is not None:
            self._mark = self._intake.received
            return self._intake.timeout
        if self.phase is _IDLE:
            return settings.idle_timeout
        if self.phase is _SOCKET:
            return self._socket_deadline(cast("WebSocket", self.tap))
        if self._request is not None:
            return self._request.timeout
        return settings.head_timeout if self.phase in (_HEAD, _PROXY) else None

    def _socket_deadline(self, socket: WebSocket) -> float | None:
        if not socket.open:
            return CLOSE_SECONDS
        self._mark = 0
        return self._service.settings.body_timeout if socket.halfway else None

    def expired(self) -> None:
        """The wheel calls: what was waited for did not come, unless something has moved since."""
        if self.phase is _CLOSED:
            return
        if self.stuck:
            self._expired_writing()
        elif self.phase is _SOCKET and cast("WebSocket", self.tap).halfway:
            self._expired_halfway(cast("WebSocket", self.tap))
        elif self.phase is _DISCARD or self.phase is _SOCKET or self.phase is _PROXY:
            self.cut()
        elif self._intake is not None:
            self._expired_reading(self._intake)
        elif self.phase is _IDLE:
            self.end()
        elif self.phase is _HEAD:
            self._service.counters.timed_out += 1
            remedy = f"Send the whole head within {self._service.settings.head_timeout:g} s (server.head_timeout)."
            self._refuse(PeerError(408, "the request head took too long", remedy=remedy), self._buffer)
        elif self.phase is _BUSY and self._request is not None:
            self._work = None
            self._answer(self._timed_out(self._request))
            self._go_on()

    def _expired_writing(self) -> None:
        if self.transport.get_write_buffer_size() < self._mark:
            self._arm_for_phase()
            return
        self._service.counters.cut += 1
        log.info("connection.stalled", extra={"peer": self._peer, "pending": self.pending})
        self.cut()

    def _expired_reading(self, intake: Intake) -> None:
        if self._paused or intake.received - self._mark >= BODY_PROGRESS_BYTES:
            self._arm_for_phase()
            return
        self._service.counters.timed_out += 1
        remedy = f"Send at least {BODY_PROGRESS_BYTES:,} bytes of the body in every {intake.timeout:g} s."
        self._body_failed(intake, PeerError(408, "the request body took too long", remedy=remedy))

    def _expired_halfway(self, socket: WebSocket) -> None:
        if self._paused or self._mark >= BODY_PROGRESS_BYTES:
            self._arm_for_phase()
            return
        self._service.counters.timed_out += 1
        socket.close(CloseCode.POLICY_VIOLATION, "a message took too long")

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
        return self._service.decrypted

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._service.decrypted[:nbytes]))


def _peer_address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
