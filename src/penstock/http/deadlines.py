"""What the server waits for, and for how long: heads, bodies, messages, handlers, and peers who take nothing.

A deadline that passes is booked again if something has moved since: `_mark` says how far it was. The numbers are in
`settings.py` (`server.*_timeout`); the wheel that calls `expired` is in `timers.py`.
"""

from __future__ import annotations

import logging
from typing import cast

from websockets.frames import CloseCode

from penstock.errors import PeerError
from penstock.http.answering import Phase
from penstock.http.bodies import Intake
from penstock.http.receiving import ReceivingConnection
from penstock.http.websocket import CLOSE_SECONDS, WebSocket
from penstock.limits import BODY_PROGRESS_BYTES

log = logging.getLogger("penstock.http")
_PROXY, _IDLE, _HEAD, _BUSY = Phase.PROXY, Phase.IDLE, Phase.HEAD, Phase.BUSY
_SOCKET, _DISCARD, _CLOSED = Phase.SOCKET, Phase.DISCARD, Phase.CLOSED


class TimedConnection(ReceivingConnection):
    """Books a deadline for what is waited for, and ends what does not come."""

    __slots__ = ()

    def _arm_for_phase(self) -> None:
        """Book the deadline of what is being waited for now, if that has one."""
        seconds = self._deadline()
        if seconds is None:
            self.due = 0
        else:
            self._shared.wheel.arm(self, seconds)

    def _deadline(self) -> float | None:
        settings = self._shared.settings
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
        return self._shared.settings.body_timeout if socket.halfway else None

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
            self._shared.counters.timed_out += 1
            remedy = f"Send the whole head within {self._shared.settings.head_timeout:g} s (server.head_timeout)."
            self._refuse(PeerError(408, "the request head took too long", remedy=remedy), self._buffer)
        elif self.phase is _BUSY and self._request is not None:
            self._work = None
            self._answer(self._timed_out())
            self._go_on()

    def _expired_writing(self) -> None:
        if self.transport.get_write_buffer_size() < self._mark:
            self._arm_for_phase()
            return
        self._shared.counters.cut += 1
        log.info("connection.stalled", extra={"peer": self._peer, "pending": self.pending})
        self.cut()

    def _expired_reading(self, intake: Intake) -> None:
        if self._paused or intake.received - self._mark >= BODY_PROGRESS_BYTES:
            self._arm_for_phase()
            return
        self._shared.counters.timed_out += 1
        remedy = f"Send at least {BODY_PROGRESS_BYTES:,} bytes of the body in every {intake.timeout:g} s."
        self._body_failed(intake, PeerError(408, "the request body took too long", remedy=remedy))

    def _expired_halfway(self, socket: WebSocket) -> None:
        if self._paused or self._mark >= BODY_PROGRESS_BYTES:
            self._arm_for_phase()
            return
        self._shared.counters.timed_out += 1
        socket.close(CloseCode.POLICY_VIOLATION, "a message took too long")
