"""Answers `/msgstream`: polls and WebSockets find their session here."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.doors.msgstream.connections import EMPTY, HEADERS, Handshake, Poll, Socket, json_answer, refusal
from penstock.doors.msgstream.sessions import Sessions
from penstock.errors import PenstockError
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Held, Response
from penstock.settings import Settings
from penstock.wire import msgstream
from penstock.wire.msgstream import SHORT, StreamQuery, split_key

Key = tuple[str, str]  # actor and secret
BAD_REQUEST = 1008
FINDERS: Final = 16
"""Sessions that are looked for at once. After a restart all clients come back together: the others wait without a
task, in an order that is bounded by the number of connections."""
_HEAD = Response(200, headers=HEADERS)
_METHODS = "GET, POST, HEAD, OPTIONS"
_PREFLIGHT_SECONDS = 20 * 24 * 3600  # as the original says


class StreamRequests:
    """Answers everything that comes to the stream's path."""

    def __init__(self, sessions: Sessions, settings: Settings) -> None:
        self._sessions, self._context = sessions, sessions.context
        self._settings = settings.msgstream
        self._origins = settings.server.cors_origins
        self._waiting: deque[tuple[Poll | Handshake, Key]] = deque()  # those whose session is to be found
        self._finders = 0

    def __call__(self, request: Request) -> Response | Held:
        """A poll, or the handshake of a WebSocket."""
        asked: StreamQuery | None = request.memo.get("msgstream")
        if asked is None:
            asked = msgstream.parse(request.query)
            if asked.transport == SHORT and not asked.confirm:  # others hardly ever come twice to the byte
                request.memo["msgstream"] = asked
        if (request.header(b"upgrade") or b"").lower() == b"websocket":
            return self._open(request, asked)
        if reason := msgstream.why_no_poll(asked):
            return refusal(400, reason)
        if request.method == "HEAD":
            return _HEAD
        if asked.session_key == "":
            return refusal(400, "No sessionKey given")
        return self._poll(request, asked)

    def options(self, request: Request) -> Response:
        """What a page of another origin asks before it asks."""
        origin, wanted = request.header(b"origin"), request.header(b"access-control-request-headers")
        headers = [*HEADERS, ("Allow", _METHODS)]
        if origin is not None and ("*" in self._origins or origin.decode("latin-1") in self._origins):
            headers.append(("Access-Control-Max-Age", str(_PREFLIGHT_SECONDS)))
            headers.append(("Access-Control-Allow-Methods", _METHODS))
            if wanted:
                headers.append(("Access-Control-Allow-Headers", wanted.decode("latin-1")))
        return Response(200, b"", "", tuple(headers))

    # ── polls ─────────────────────────────────────────────────────────────────────────────────

    def _poll(self, request: Request, asked: StreamQuery) -> Response | Held:
        """Answer at once where nothing has to be waited for."""
        parts = split_key(asked.session_key)
        if parts is None:
            return json_answer(msgstream.unset("invalidSessionKey"))
        session = self._sessions.at_hand(parts[0])
        if session is not None:
            if reason := self._sessions.why_not_here(session, parts[1]):
                return json_answer(msgstream.unset(reason))
            if asked.transport == SHORT and not asked.confirm and session.poll_without_waiting():
                return EMPTY
        poll = Poll(request, asked.transport, self._settings.heartbeat, asked.confirm)
        if session is not None:
            poll.join(session)
        else:
            self._find_later(poll, parts)
        return poll

    # ── WebSockets ────────────────────────────────────────────────────────────────────────────

    def _open(self, request: Request, asked: StreamQuery) -> Response | Held:
        """Become a WebSocket: what is wrong with the session is said over it."""
        parts = split_key(asked.session_key)
        if asked.session_key == "":
            self._accept(request).close(BAD_REQUEST, "No sessionKey given")
        elif parts is None:
            self._accept(request).end("invalidSessionKey")
        elif (session := self._sessions.at_hand(parts[0])) is None:
            request.check_websocket()
            handshake = Handshake(request, self._accept)
            self._find_later(handshake, parts)
            return handshake
        elif reason := self._sessions.why_not_here(session, parts[1]):
            self._accept(request).end(reason)
        else:
            self._accept(request).join(session)
        return LIVE

    def _accept(self, request: Request) -> Socket:
        socket = Socket(self._settings.ping)
        socket.tap = request.accept_websocket(socket, watch=self._context.ledger.enabled)
        return socket

    # ── both ──────────────────────────────────────────────────────────────────────────────────

    def _find_later(self, connection: Poll | Handshake, key: Key) -> None:
        """Have the session found, after those who asked before."""
        self._waiting.append((connection, key))
        if self._finders < FINDERS:
            self._finders += 1
            self._sessions.tasks.start(self._find_all())

    async def _find_all(self) -> None:
        try:
            while self._waiting:
                await self._find(*self._waiting.popleft())
        finally:
            self._finders -= 1

    async def _find(self, connection: Poll | Handshake, key: Key) -> None:
        try:
            session = await self._sessions.open(*key)
        except PenstockError as error:
            connection.end("", error)
            return
        if isinstance(session, str):
            connection.end(session)
        else:
            connection.join(session)
