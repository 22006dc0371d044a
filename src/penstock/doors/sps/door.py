"""The door: its rows of the table, and what lives with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from penstock.api.context import Context
from penstock.core.metering import Sample
from penstock.doors.sps.asking import subscribing
from penstock.doors.sps.claims import Claims
from penstock.doors.sps.presence import Presence
from penstock.doors.sps.publish import Notify, to_all, to_room, to_user
from penstock.doors.sps.rooms import Rooms
from penstock.doors.sps.tokens import Tokens
from penstock.doors.sps.turnstile import Turnstile
from penstock.doors.sps.wires import DOOR, Wires
from penstock.http.exchange import LIVE, Request, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import ENTRY_BYTES
from penstock.settings import Settings


class Sps:
    """The simple push server."""

    kind: type[Wires] = Wires

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings = context, settings.sps
        members = context.members
        self._presence = Presence(context.log, context.clock, enabled=settings.sps.presence, alone=members.alone)
        self.wires = self.kind(context, settings.sps, self._presence, time)
        self._stack = AsyncExitStack()
        if not members.alone:
            self.wires.claims = Claims(
                context.registry,
                context.bus,
                members,
                context.clock,
                self._presence,
                self.wires,
                context.background,
                context.lookout,
            )
        self._rooms = Rooms(context, self.wires)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._presence)
        if self.wires.claims is not None:
            await self._stack.enter_async_context(self._rooms.calls)
            await self._stack.enter_async_context(self.wires.claims)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def samples(self) -> Iterable[Sample]:
        """Nothing that the node does not count for every door."""
        return ()

    def routes(self) -> list[Route]:
        """Every path of the seed, and those that its promises need."""
        context, rooms, tokens = self._context, self._rooms, Tokens(self._context)
        rows = [
            Route("GET", "/subscribe", Turnstile(self.subscribe), timeout=None, door=DOOR),
            Route("POST", "/subsist", rooms.subsist, door=DOOR),
            Route("POST", "/join", rooms.join, door=DOOR),
            Route("POST", "/leave", rooms.leave, door=DOOR),
            Route("PUT", "/rooms", rooms.replace, door=DOOR),
            Route("GET", "/rooms", rooms.counts, door=DOOR),
            Route("GET", "/online", rooms.online, door=DOOR),
            Route("POST", "/v1/tokens", tokens, body=WHOLE(64 * 1024), admit=tokens.admit, door=DOOR),
        ]
        for path, read in (("user", to_user), ("room", to_room), ("all", to_all)):
            notify = Notify(context, self.wires, read)
            rows.append(
                Route("POST", f"/notify_to_{path}", notify, body=WHOLE(ENTRY_BYTES), admit=notify.admit, door=DOOR)
            )
        return rows

    def subscribe(self, request: Request) -> Response:
        """Open a wire. HEAD is answered as GET would be, and replaces nobody."""
        asked = subscribing(request, self._context, self._settings)
        if request.method == "HEAD":
            return Response(200, content_type="")
        self.wires.open(request, asked)
        return LIVE
