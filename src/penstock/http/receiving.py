"""The receiving half of a connection: bodies and WebSocket frames.

Bodies and frames are taken slice by slice, in turn with other connections, and no more of them than the peer may send.
How long is waited for them: `deadlines.py`.
"""

from __future__ import annotations

import logging
from typing import Final, cast

from websockets.frames import CloseCode

from penstock.errors import Busy, PeerError, PenstockError
from penstock.http import answer_bytes
from penstock.http.answering import AnsweringConnection, Phase
from penstock.http.bodies import BodyStream, Booking, Intake
from penstock.http.requests import Request
from penstock.http.routing import BodyKind, Route
from penstock.http.shared import Shared
from penstock.http.websocket import WebSocket
from penstock.limits import COUNTED_BODY_BYTES, INPUT_QUEUE_BYTES, PIPELINED_BYTES
from penstock.wire import http_requests, http_responses

log = logging.getLogger("penstock.http")
_PROXY, _IDLE, _HEAD, _BUSY = Phase.PROXY, Phase.IDLE, Phase.HEAD, Phase.BUSY
_SOCKET, _DISCARD, _CLOSED = Phase.SOCKET, Phase.DISCARD, Phase.CLOSED

FRAME_SLICE: Final = 4 * 1024
"""Bytes of WebSocket frames that are taken at once: of the smallest frames some 5 milliseconds."""
FRAMES_PER_TURN: Final = 256
"""Frames after which others have their turn."""


class ReceivingConnection(AnsweringConnection):
    """Takes what comes in, and books what is held of it."""

    __slots__ = ("_mark", "_paused", "_peer", "_taking", "_trusted")

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._peer = ""
        self._trusted = False
        self._taking = False  # the rest of what came is taken in the next turn
        self._paused = False  # nothing is read from the socket
        self._mark = 0  # bytes received or pending when the wheel was armed: has anything moved since?

    # ── WebSocket frames ──────────────────────────────────────────────────────────────────────

    def _take_frames_in_turn(self) -> bool:
        """Take what waits, slice by slice; False if the rest comes later: others are there, or the peer must read."""
        if self._taking:
            return False
        data, self._buffer = self._buffer, b""
        at = frames = 0
        while at < len(data) and frames <= FRAMES_PER_TURN and not self._owes_too_much():
            frames += self._take_frames(data[at : at + FRAME_SLICE])
            at += FRAME_SLICE
        if self.phase is not _SOCKET or at >= len(data):
            return True
        self._buffer = data[at:]
        if not self._owes_too_much():  # else it goes on when the peer has read
            self._go_on_soon()
        return False

    def _go_on_soon(self) -> None:
        """Take the rest in the next turn of the loop, once."""
        self._taking = True
        self._shared.loop.call_soon(self._take_rest)

    def _take_rest(self) -> None:
        self._taking = False
        self._go_on()

    def _owes_too_much(self) -> bool:
        """The peer does not read what it asks for."""
        return self.stuck and self.pending > INPUT_QUEUE_BYTES

    def _take_frames(self, data: bytes) -> int:
        """Give the WebSocket what came; return how many frames that were.

        A message that has begun must make progress, as a body must, and is counted as one.
        """
        socket = cast("WebSocket", self.tap)
        frames = socket.receive(data)
        if socket.held > COUNTED_BODY_BYTES:
            try:
                self._book("" if self._trusted else self._peer, socket.held)
            except Busy:
                socket.close(CloseCode.TRY_AGAIN_LATER, "too many bytes of messages")
        elif self._booking is not None:
            self._end_booking()
        if socket.open and not self.stuck:  # else its close, or its output, has a deadline already
            if not socket.halfway:
                self.due = 0
            elif self.due:
                self._mark += len(data)
            else:
                self._arm_for_phase()
        return frames

    def _book(self, address: str, size: int) -> Booking:
        """Count *size* bytes that are held, or will be; raises `Busy` where that is too much."""
        if self._booking is None:
            self._booking = Booking(self._shared.bodies, address)
        self._booking.grow(size)
        return self._booking

    # ── bodies ────────────────────────────────────────────────────────────────────────────────

    def _begin_body(self, head: http_requests.RequestHead, route: Route, request: Request) -> None:
        kind = route.body.kind
        if kind is not BodyKind.STREAM and 0 < head.length <= len(self._buffer):
            # The usual small body came with its head.
            request.body, self._buffer = self._buffer[: head.length], self._buffer[head.length :]
            self._call(route, request)
            return
        timeout = self._shared.settings.body_timeout if route.body_timeout == -1.0 else route.body_timeout
        intake = self._intake = Intake(head, route.body.limit, timeout)
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
                self.write(http_responses.CONTINUE)
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
            self._call(cast("Route", self._route), request)
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
            self._answer(answer_bytes.early_problem(self._shared, cast("Request", self._request), error))

    # ── when the peer must wait ───────────────────────────────────────────────────────────────

    def _ready_for_next(self) -> None:
        self.phase = _IDLE
        self._keep_alive = True
        if self.stuck:
            self._arm_for_phase()
        else:
            self._shared.wheel.arm_ticks(self, self._shared.idle_ticks)

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

    def _refuse(self, error: PeerError, head: bytes = b"") -> None:
        """Answer something that was no request, and end the connection: nobody knows where it would go on."""
        log.info("request.refused", extra={"peer": self._peer, "status": error.status, "reason": error.detail})
        self._buffer = b""
        self._keep_alive = False
        self._intake = None
        self.write(answer_bytes.refusal(self._shared, error, head))
        self.hang_up()
