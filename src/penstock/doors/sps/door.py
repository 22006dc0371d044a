"""The door: its rows of the table, and what lives with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

import msgspec

from penstock.api.context import Context, decoded, only
from penstock.api.describing import INTEGER, STRING, an_object, operation
from penstock.api.recipients import RecipientKind
from penstock.core.metering import Sample
from penstock.core.names import check_pattern
from penstock.doors.sps.online_and_rooms import WireCommands
from penstock.doors.sps.presence_stream import Presence
from penstock.doors.sps.publish import REACHED, Notify, count_for_others, to_all, to_room, to_user
from penstock.doors.sps.recipients import WireRecipients
from penstock.doors.sps.requests import TokenRequest, read_subscribe
from penstock.doors.sps.subscribe_pace import Admission
from penstock.doors.sps.wires import DOOR, Wires
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import ENTRY_BYTES, USER_TOKEN_SECONDS
from penstock.settings import Settings
from penstock.wire.sps import user_number


class Sps:
    """The simple push server."""

    kind: type[Wires] = Wires

    def __init__(self, context: Context, settings: Settings, time: Callable[[], float] | None = None) -> None:
        self._context, self._settings = context, settings.sps
        alone = context.members.alone
        self._presence = Presence(context.log, context.clock, enabled=settings.sps.presence, alone=alone)
        self.wires = self.kind(context, settings.sps, self._presence, time)
        self._rooms = WireCommands(context, self.wires)
        context.other_workers.answer(REACHED, partial(count_for_others, self.wires))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for living in (self._presence, self._rooms.remote, self.wires.owners):
            if living is not None:
                await self._stack.enter_async_context(living)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def samples(self) -> Iterable[Sample]:
        """Nothing that the node does not count for every door."""
        return ()

    def recipient_kinds(self) -> list[RecipientKind]:
        return [WireRecipients(self._context, self.wires)]

    def routes(self) -> list[Route]:
        """Every path of the sps specification, and those that its promises need."""
        rooms = self._rooms
        rows = [
            Route("GET", "/subscribe", Admission(self.subscribe), timeout=None, door=DOOR),
            Route("POST", "/subsist", rooms.subsist, door=DOOR),
            Route("POST", "/join", partial(rooms.change, "join"), door=DOOR),
            Route("POST", "/leave", partial(rooms.change, "leave"), door=DOOR),
            Route("PUT", "/rooms", partial(rooms.change, "replace"), door=DOOR),
            Route("GET", "/rooms", rooms.counts, door=DOOR),
            Route("GET", "/online", rooms.online, door=DOOR),
            Route("POST", "/v1/tokens", self.make_token, body=WHOLE(64 * 1024), admit=self._admit_backend, door=DOOR),
        ]
        for path, read in (("user", to_user), ("room", to_room), ("all", to_all)):
            notify = Notify(self._context, self.wires, read)
            rows.append(
                Route("POST", f"/notify_to_{path}", notify, body=WHOLE(ENTRY_BYTES), admit=notify.admit, door=DOOR)
            )
        return rows

    def subscribe(self, request: Request) -> Response:
        """Open a wire. HEAD is answered as GET would be, and replaces nobody."""
        asked = read_subscribe(request, self._context, self._settings)
        if request.method == "HEAD":
            return Response(200, content_type="")
        self.wires.open(request, asked)
        return LIVE

    @operation(
        "Make the token of a user who has logged in (sps).",
        body=TokenRequest,
        answers={201: an_object(token=STRING, uid=STRING, expires=INTEGER)},
    )
    def make_token(self, request: Request) -> Response:
        """Sign a token that can only subscribe, so that it may stand in a URL.

        For the admin, or for a backend with the grant `sessions`; it can pass on only what it may read itself.
        """
        caller = self._context.caller(request)
        caller.check_grant("sessions")
        wanted = decoded(request.body, TokenRequest)
        uid = user_number("uid", str(wanted.uid))
        patterns = tuple(check_pattern(pattern) for pattern in wanted.subscribe)
        if not 1 <= wanted.ttl <= USER_TOKEN_SECONDS:
            raise InputInvalid("ttl", f"is not a number of seconds from 1 to {USER_TOKEN_SECONDS:,}")
        for pattern in patterns:
            caller.check_subscribe(pattern)
        now = self._context.clock.now_ms() // 1000
        token = self._context.authenticator.keys.issue(uid, subscribe=patterns, ttl=wanted.ttl, now=now)
        return Response(201, msgspec.json.encode({"token": token, "uid": uid, "expires": now + wanted.ttl}))

    def _admit_backend(self, request: Request) -> None:
        """Turn strangers away before a byte of their body is read."""
        only(request)
        self._context.known(request).check_grant("sessions")
