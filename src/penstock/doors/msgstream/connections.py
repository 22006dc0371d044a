"""The connection of a session: a poll that waits for its answer, or a WebSocket; and the handshake that asks for one.

What is sent when, and how it ends, is decided by the session (`wire/msgstream_session.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.doors.msgstream.session import Session
from penstock.errors import Busy, PenstockError
from penstock.http.problems import Problem, error_response
from penstock.http.requests import Request
from penstock.http.responses import Held, Response
from penstock.http.timers import Timed
from penstock.http.websocket import WebSocket
from penstock.limits import CONFIRM_BYTES, CONFIRMS
from penstock.wire import msgstream
from penstock.wire.msgstream_actions import Numbered
from penstock.wire.websocket_frames import text_frame

HEADERS: Final = (("Pragma", "no-cache"), ("Cache-Control", "no-store"))
EMPTY: Final = Response(204, headers=HEADERS)
NO_TEXT, TOO_MUCH, TOO_LARGE, BROKEN = 1003, 1008, 1009, 1011
_STORAGE_FAILED: Final = 500  # the original's number for that


def json_answer(body: bytes) -> Response:
    """Packs, or the news that there is no session."""
    return Response(200, body, headers=HEADERS)


def refusal(status: int, text: str = "") -> Response:
    """What a poll gets instead."""
    return Response(status, text.encode(errors="replace"), "text/plain; charset=UTF-8", HEADERS)


def failure(error: Exception) -> Response:
    """The storage does not answer: nothing is lost, and the same poll may succeed later."""
    return error_response(error, _nothing_but_when)


def _nothing_but_when(problem: Problem) -> Response:
    status = problem.status if isinstance(problem.error, Busy) else _STORAGE_FAILED
    return Response(status, b"", "", (*HEADERS, *(problem.headers or (("Retry-After", "1"),))))


class Poll(Held, Timed):
    """A poll. It is answered once."""

    __slots__ = ("_deadline", "_heartbeat", "_request", "confirm", "session", "transport")

    full = False

    def __init__(self, request: Request, transport: str, heartbeat: float, confirm: tuple[int, ...]) -> None:
        super().__init__()
        self._request: Request | None = request
        self.transport, self.confirm = transport, confirm
        self._heartbeat = heartbeat  # seconds that a long one waits; 0 is for ever
        self._deadline = 0.0  # when it ends, by the wheel's clock; 0 until it waits
        self.session: Session | None = None  # until it is found

    def join(self, session: Session) -> None:
        """Belong to a session; one whose client has left still confirms."""
        self.session = session
        if self._request is not None:
            session.connect(self, self.confirm)
        elif self.confirm:
            session.confirm(self.confirm)

    def send(self, delivery: bytes, packs: Sequence[Numbered]) -> None:
        if self.session is not None:
            self.session.tell_ledger("sent", packs)
        self._answer(json_answer(delivery))

    def wait(self) -> None:
        """Count the heartbeat, and see to it before its session's life is over."""
        if self.session is not None and not self.due:
            wheel = self.session.home.context.wheel
            if not self._deadline:
                self._deadline = wheel.time() + self._heartbeat if self._heartbeat else float("inf")
            wheel.arm(self, min(self.session.record.ttl / 3, self._deadline - wheel.time()))

    def end(self, reason: str, error: Exception | None = None) -> None:
        unset = json_answer(msgstream.unset(reason)) if reason else EMPTY
        self._answer(unset if error is None else failure(error))

    def _answer(self, response: Response) -> None:
        request, self._request = self._request, None
        self._forget_time()
        if request is not None:
            request.answer(response)

    def _forget_time(self) -> None:
        if self.session is not None:
            self.session.home.context.wheel.forget(self)

    # ── as the connection and the wheel see it ────────────────────────────────────────────────

    def lost(self) -> None:
        """The client left."""
        self._request = None
        self._forget_time()
        if self.session is not None:
            self.session.lost(self)

    def draining(self) -> None:
        """The server stops: the client comes back to whoever serves it next."""
        self.transport = msgstream.SHORT  # if its session is found only now, it does not wait
        if self.session is not None:
            self.session.dismiss(self)
        elif not self.confirm:
            self._answer(EMPTY)

    def expired(self) -> None:
        """End the poll at its deadline. Before that, keep the session alive: a client that waits is alive."""
        if self.session is not None:
            if self.session.home.context.wheel.time() >= self._deadline:
                self.session.dismiss(self)
            else:
                self.wait()
                self.session.touch()


class Handshake(Held):
    """Asks for a WebSocket, and is answered when its session is served here.

    A client that sees its WebSocket open may open the next one at another node. If this one's claim of the session
    were still on its way, it could come second, and the older connection would win.
    """

    __slots__ = ("_accept", "_request")

    def __init__(self, request: Request, accept: Callable[[Request], Socket]) -> None:
        self._request: Request | None = request
        self._accept = accept

    def join(self, session: Session) -> None:
        """Let the WebSocket belong to a session."""
        if (socket := self._open()) is not None:
            socket.join(session)

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Say over the WebSocket what is wrong."""
        if (socket := self._open()) is not None:
            socket.end(reason, error)

    def _open(self) -> Socket | None:
        request, self._request = self._request, None
        if request is None:
            return None
        try:
            return self._accept(request)
        except PenstockError as error:
            request.answer(error_response(error), close=True)
            return None

    def lost(self) -> None:
        """The client left."""
        self._request = None

    def draining(self) -> None:
        """The server stops."""
        self.end("")


class Socket(Timed):
    """A WebSocket: packs as text frames, confirmed by frames of ids."""

    __slots__ = ("_ping_seconds", "_pinged", "_untold", "session", "tap")

    transport = msgstream.WEBSOCKET
    tap: WebSocket

    def __init__(self, ping_seconds: float) -> None:
        super().__init__()
        self.session: Session | None = None
        self._ping_seconds = ping_seconds
        self._pinged = False  # and not answered yet
        self._untold: list[Numbered] | None = None  # sent, and not with the kernel yet

    @property
    def full(self) -> bool:
        return self.tap.full

    def join(self, session: Session) -> None:
        """Belong to a session."""
        self.session = session
        self._arm()
        session.connect(self)

    def send(self, delivery: bytes, packs: Sequence[Numbered]) -> None:
        self.tap.put(text_frame(delivery))
        self._untold = [*(self._untold or ()), *packs]

    def wait(self) -> None:
        """It stays open anyway."""

    def end(self, reason: str, error: Exception | None = None) -> None:
        if reason:
            self.tap.put(text_frame(msgstream.unset(reason)))
        self.close(1000 if error is None else BROKEN)

    def close(self, code: int, reason: str = "") -> None:
        """Close with the reason in words."""
        self.tap.close(code, reason)
        self._leave()

    def _leave(self) -> None:
        if self.session is not None:
            self.session.home.context.wheel.forget(self)
            self.session.lost(self)

    def _arm(self) -> None:
        """Ping it after a while, and before its session's life is over."""
        if self.session is not None:
            self.session.home.context.wheel.arm(self, min(self._ping_seconds, self.session.record.ttl / 3))

    # ── as the WebSocket's owner ──────────────────────────────────────────────────────────────

    def received(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self.close(NO_TEXT, "only text is understood here")
        elif len(message) > CONFIRM_BYTES:
            self.close(TOO_LARGE, f"more than {CONFIRM_BYTES} bytes of ids")
        elif self.session is not None and (ids := msgstream.confirmed(message)) and not self.session.confirm(ids):
            self.close(TOO_MUCH, f"more than {CONFIRMS:,} ids at once")

    def flushed(self) -> None:
        """The kernel has taken everything."""
        if self._untold and self.session is not None:
            self.session.tell_ledger("sent", self._untold)
        self._untold = None

    def drained(self) -> None:
        """The client takes bytes again."""
        if self.session is not None:
            self.session.drained(self)

    def ponged(self) -> None:
        self._pinged = False

    def lost(self, code: int) -> None:
        """It is over."""
        self._leave()

    def draining(self) -> None:
        """The server stops."""
        self.close(1000)

    def expired(self) -> None:
        """The wheel calls: see whether somebody is there; who is keeps the session alive."""
        if self._pinged:
            self.tap.abort()
        elif self.session is not None:
            self._pinged = True
            self.tap.ping()
            self.session.touch()
            self._arm()
