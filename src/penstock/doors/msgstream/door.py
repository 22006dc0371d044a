"""The door: its rows of the table, and what lives with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.api.recipients import RecipientKind
from penstock.core.background import Loop, Tasks
from penstock.core.metering import Sample
from penstock.doors.msgstream.backend import Emitter, SessionsApi
from penstock.doors.msgstream.recipients import SessionRecipients
from penstock.doors.msgstream.records import DOOR
from penstock.doors.msgstream.sessions import Sessions
from penstock.doors.msgstream.stream import StreamRequests
from penstock.http.requests import Handler
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, PACK_BYTES
from penstock.settings import Settings


class MessageStreamDoor:
    """The message stream."""

    kind: type[Sessions] = Sessions

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context, self._settings = context, settings.msgstream
        self._tasks = Tasks("msgstream")
        self._sweeping: Loop | None = None
        self.sessions = self.kind(context, settings.msgstream, self._tasks)
        self._stream = StreamRequests(self.sessions, settings)
        self._emitter = Emitter(self.sessions)
        self._api = SessionsApi(self.sessions)

    async def __aenter__(self) -> Self:
        await self._context.mailbox.make_month(self.sessions.month)
        await self.sessions.owned.__aenter__()
        every = self._context.background.every
        self._sweeping = every(self._settings.sweep, "msgstream.sweep", self.sessions.sweep)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._sweeping is not None:
            await self._sweeping.stop()
        await self._tasks.close()
        self.sessions.close()
        await self.sessions.owned.__aexit__(*error)

    def samples(self) -> Iterable[Sample]:
        """How many sessions are known and connected here, and how many packs were emitted."""
        sessions = self.sessions
        yield "gauge", "sessions_known", "Sessions that this node remembers.", len(sessions.known), {}
        yield "gauge", "sessions_connected", "Sessions with a connection to this node.", sessions.connected, {}
        yield "counter", "sessions_ended", "Sessions that this node has cleared away.", sessions.ended, {}
        yield "counter", "packs_emitted", "Packs that were emitted here.", self._emitter.emitted, {}

    def recipient_kinds(self) -> list[RecipientKind]:
        return [SessionRecipients(self.sessions)]

    def routes(self) -> list[Route]:
        """The stream under its path, with and without a slash at the end, and the backend's calls."""
        rows = [
            self._call("POST", "/v1/emit", self._emitter, self._emitter.check, 2 * PACK_BYTES),
            self._call("POST", "/v1/sessions", self._api.create, self._api.check),
            self._call("POST", "/v1/actors", self._api.find_actors, self._api.check, 256 * 1024),
            Route("GET", "/v1/sessions", self._api.list, door=DOOR),
            Route("GET", "/v1/sessions/*", self._api.show, door=DOOR),
            Route("DELETE", "/v1/sessions/*", self._api.end, door=DOOR),
        ]
        for path in ("/msgstream", "/msgstream/"):
            rows += [Route(method, path, self._stream, timeout=None, door=DOOR) for method in ("GET", "POST")]
            rows.append(Route("OPTIONS", path, self._stream.options, door=DOOR))
        return rows

    def _call(
        self, method: str, path: str, handler: Handler, check: Callable[[Caller], None], limit: int = CALL_BYTES
    ) -> Route:
        return Route(method, path, handler, body=WHOLE(limit), admit=self._context.admitting(check), door=DOOR)
