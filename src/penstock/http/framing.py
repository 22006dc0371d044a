"""The part of a connection that takes WebSocket frames: in turn with others, and no more than the peer may send."""

from __future__ import annotations

from typing import Final, cast

from websockets.frames import CloseCode

from penstock.errors import Busy
from penstock.http.answering import Answering, Phase
from penstock.http.bodies import Booking
from penstock.http.service import Service
from penstock.http.websocket import WebSocket
from penstock.limits import COUNTED_BODY_BYTES, INPUT_QUEUE_BYTES

FRAME_SLICE: Final = 4 * 1024
"""Bytes of WebSocket frames that are taken at once: of the smallest frames some 5 milliseconds."""
FRAMES_PER_TURN: Final = 256
"""Frames after which others have their turn."""


class Framing(Answering):
    """Takes what comes in on a WebSocket, and books what is held of it."""

    __slots__ = ("_mark", "_peer", "_taking", "_trusted")

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._peer = ""
        self._trusted = False
        self._taking = False  # the rest of what came is taken in the next turn
        self._mark = 0  # bytes received or pending when the wheel was armed: has anything moved since?

    def _take_frames_in_turn(self) -> bool:
        """Take what waits, slice by slice; False if the rest comes later: others are there, or the peer must read."""
        if self._taking:
            return False
        data, self._buffer = self._buffer, b""
        at = frames = 0
        while at < len(data) and frames <= FRAMES_PER_TURN and not self._owes_too_much():
            frames += self._take_frames(data[at : at + FRAME_SLICE])
            at += FRAME_SLICE
        if self.phase is not Phase.SOCKET or at >= len(data):
            return True
        self._buffer = data[at:]
        if not self._owes_too_much():  # else it goes on when the peer has read
            self._go_on_soon()
        return False

    def _go_on_soon(self) -> None:
        """Take the rest in the next turn of the loop, once."""
        self._taking = True
        self._service.loop.call_soon(self._take_rest)

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
            self._booking = Booking(self._service.bodies, address)
        self._booking.grow(size)
        return self._booking
