"""The connection of a session: a poll that waits for its answer, or a WebSocket.

A session has one at a time. What it must know about it is the same for all: what was sent on it, whether it takes
more, and how it ends. A short poll is a long one without patience.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock.doors.msgstream.packs import Text, Waiting
from penstock.errors import Busy
from penstock.http.exchange import Held, Request, Response
from penstock.http.websocket import WebSocket
from penstock.http.wheel import Timed
from penstock.limits import CONFIRM_BYTES, CONFIRMS
from penstock.wire import msgstream
from penstock.wire.frames import text_frame

if TYPE_CHECKING:
    from penstock.doors.msgstream.session import Session

HEADERS: Final = (("Pragma", "no-cache"), ("Cache-Control", "no-store"))
EMPTY: Final = Response(204, headers=HEADERS)
NO_TEXT, TOO_MUCH, TOO_LARGE, BROKEN = 1003, 1008, 1009, 1011


def json_answer(body: bytes) -> Response:
    """Packs, or the news that there is no session."""
    return Response(200, body, headers=HEADERS)


def refusal(status: int, text: str = "") -> Response:
    """What a poll gets instead."""
    return Response(status, text.encode(errors="replace"), "text/plain; charset=UTF-8", HEADERS)


def failure(error: Exception) -> Response:
    """The storage does not answer: nothing is lost, and the same poll may succeed later."""
    status = 503 if isinstance(error, Busy) else 500
    return Response(status, b"", "", (*HEADERS, ("Retry-After", str(getattr(error, "retry_after", 1)))))


class Live(Protocol):
    """One connection, as its session sees it."""

    sent: int  # the highest number that was sent on it

    @property
    def transport(self) -> str:
        """What kind it is."""
        ...

    @property
    def full(self) -> bool:
        """It takes nothing now."""
        ...

    @property
    def whole(self) -> bool:
        """It takes all that waits at once, and then nothing more."""
        ...

    def give(self, texts: Sequence[Text], packs: Sequence[tuple[int, Waiting]]) -> None:
        """Send packs."""
        ...

    def idle(self) -> None:
        """There is nothing to send now."""
        ...

    def confirmed(self) -> None:
        """What it confirmed is durable."""
        ...

    def unconfirmed(self) -> None:
        """What it confirmed is not durable, and will not be: the session is gone."""
        ...

    def displaced(self) -> None:
        """Another connection took its place, or the server stops."""
        ...

    def unset(self, reason: str) -> None:
        """There is no such session, or not any more."""
        ...

    def failed(self, error: Exception) -> None:
        """The storage does not answer."""
        ...


class Poll(Held, Timed):
    """A poll. It is answered once, and not before what it confirms is durable."""

    __slots__ = ("_answer", "_request", "_waits", "deadline", "patience", "sent", "session")

    session: Session

    def __init__(self, request: Request, patience: float | None, *, confirming: bool) -> None:
        Timed.__init__(self)
        self._request: Request | None = request
        self.patience = patience  # seconds, 0 for ever; None is none: a short poll
        self.deadline = 0.0  # when it ends, by the wheel's clock; 0 until it waits
        self.sent = 0
        self._waits = confirming  # for what it confirms to be durable, whatever happens until then
        self._answer: Response | None = None

    @property
    def transport(self) -> str:
        return msgstream.SHORT if self.patience is None else msgstream.LONG

    @property
    def over(self) -> bool:
        """Nobody waits for it any more."""
        return self._request is None

    @property
    def full(self) -> bool:
        return self._answer is not None

    @property
    def whole(self) -> bool:
        return True

    def give(self, texts: Sequence[Text], packs: Sequence[tuple[int, Waiting]]) -> None:
        self.session.record("sent", packs)
        self.sent = packs[-1][0]
        self.finish(json_answer(msgstream.delivery(self.session.ids(texts))))

    def idle(self) -> None:
        if self.patience is None:
            self.finish(EMPTY)
        elif not self.due:
            self.session.home.arm_poll(self)

    def confirmed(self) -> None:
        self._waits = False
        if self._answer is not None:
            self.finish(self._answer)

    def unconfirmed(self) -> None:
        self._waits = False
        told = self._answer if self._answer not in (None, EMPTY) else None
        self.finish(told or failure(Busy("session", 0)))

    def displaced(self) -> None:
        self.finish(EMPTY)

    def unset(self, reason: str) -> None:
        self.finish(json_answer(msgstream.unset(reason)))

    def unknown(self, reason: str) -> None:
        """There is no session in which it could confirm anything."""
        self._waits, self._answer = False, None
        self.unset(reason)

    def failed(self, error: Exception) -> None:
        self._waits = False
        self.finish(failure(error))

    def finish(self, response: Response) -> None:
        """Answer, as soon as that may be."""
        if self._waits:
            self._answer = self._answer or response
            return
        request, self._request = self._request, None
        if request is not None:
            request.answer(response)
            self._leave()

    # ── as the connection and the wheel see it ────────────────────────────────────────────────

    def lost(self) -> None:
        """The client left."""
        self._request = None
        self._leave()

    def draining(self) -> None:
        """The server stops: the client comes back to whoever serves it next."""
        self.finish(EMPTY)

    def expired(self) -> None:
        """The heartbeat, of its own or of its session's life."""
        self.session.home.poll_due(self)

    def _leave(self) -> None:
        if hasattr(self, "session"):
            self.session.home.context.wheel.forget(self)
            self.session.left(self)


class Socket(Timed):
    """A WebSocket: packs as text frames, confirmed by frames of ids."""

    __slots__ = ("_early", "_pinged", "_untold", "sent", "session", "tap")

    transport = msgstream.WEBSOCKET
    session: Session | None
    tap: WebSocket

    def __init__(self) -> None:
        super().__init__()
        self.session = None
        self.sent = 0
        self._pinged = False  # and not answered yet
        self._early: list[int] | None = None  # confirmed before the session was found
        self._untold: list[tuple[int, Waiting]] | None = None  # sent, and not with the kernel yet

    @property
    def over(self) -> bool:
        """Nobody is there any more."""
        return not self.tap.open

    @property
    def full(self) -> bool:
        return self.tap.full or not self.tap.open

    @property
    def whole(self) -> bool:
        return False

    def join(self, session: Session) -> tuple[int, ...]:
        """Belong to a session from now on; returns what was confirmed before."""
        self.session = session
        session.home.arm_socket(self)
        early, self._early = self._early, None
        return tuple(early or ())

    def give(self, texts: Sequence[Text], packs: Sequence[tuple[int, Waiting]]) -> None:
        if self.session is not None:
            self.tap.put(text_frame(msgstream.delivery(self.session.ids(texts))))
            self.sent = packs[-1][0]
            self._untold = [*(self._untold or ()), *packs]

    def idle(self) -> None:
        """It stays open."""

    def confirmed(self) -> None:
        """It is not told: what is confirmed does not come again."""

    def unconfirmed(self) -> None:
        """Nor is it told of this: it will come again, and be confirmed again."""

    def displaced(self) -> None:
        self._close(1000)

    def unset(self, reason: str) -> None:
        self.tap.put(text_frame(msgstream.unset(reason)))
        self._close(1000)

    def failed(self, error: Exception) -> None:
        self._close(BROKEN)

    unknown = unset

    def refuse(self, code: int, reason: str) -> None:
        """Close with the reason in words."""
        self._close(code, reason)

    def _close(self, code: int, reason: str = "") -> None:
        self.tap.close(code, reason)
        self._leave()

    # ── as the WebSocket's owner ──────────────────────────────────────────────────────────────

    def received(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self._close(NO_TEXT, "only text is understood here")
        elif len(message) > CONFIRM_BYTES:
            self._close(TOO_LARGE, f"more than {CONFIRM_BYTES} bytes of ids")
        elif ids := msgstream.confirmed(message):
            if self.session is None:
                self._early = self._early or []
                self._early += ids if len(self._early) < CONFIRM_BYTES else ()
            elif not self.session.confirm(ids, self):
                self._close(TOO_MUCH, f"more than {CONFIRMS:,} ids at once")

    def flushed(self) -> None:
        """The kernel has taken everything."""
        if self._untold and self.session is not None:
            self.session.record("sent", self._untold)
        self._untold = None

    def drained(self) -> None:
        """The client takes bytes again."""
        if self.session is not None:
            self.session.wake()

    def ponged(self) -> None:
        self._pinged = False

    def lost(self, code: int) -> None:
        """It is over."""
        self._leave()

    def draining(self) -> None:
        """The server stops."""
        self._close(1000)

    def expired(self) -> None:
        """The wheel calls: see whether somebody is there; who is keeps the session alive."""
        if self._pinged:
            self.tap.abort()
        elif self.session is not None:
            self._pinged = True
            self.tap.ping()
            self.session.touch()
            self.session.home.arm_socket(self)

    def _leave(self) -> None:
        if self.session is not None:
            self.session.home.context.wheel.forget(self)
            self.session.left(self)
