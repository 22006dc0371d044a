"""`POST /v1/tokens`: the token of a user who has logged in."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.api.context import Context, decoded, only
from penstock.api.describing import INTEGER, LARGEST, PATTERN_FIELD, STRING, an_object, operation, shown_as
from penstock.core.names import check_pattern
from penstock.errors import InputInvalid
from penstock.http.exchange import Request, Response
from penstock.limits import USER_TOKEN_SECONDS
from penstock.wire.sps import user_number

_NUMBER = "^-?[0-9]{1,18}$"
_encode = msgspec.json.Encoder().encode


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """For whom, for how long, and what besides the user's own events."""

    uid: Annotated[int, shown_as(minimum=-(2**63), maximum=LARGEST)] | Annotated[str, shown_as(pattern=_NUMBER)]
    ttl: Annotated[int, shown_as(minimum=1, maximum=USER_TOKEN_SECONDS)] = 3600
    subscribe: tuple[Annotated[str, PATTERN_FIELD], ...] = ("/rooms/*",)


class Tokens:
    """Makes tokens that can listen and nothing else, so that they may stand in a URL."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @operation(
        "Make the token of a user who has logged in (sps).",
        body=Wanted,
        answers={201: an_object(token=STRING, uid=STRING, expires=INTEGER)},
    )
    def __call__(self, request: Request) -> Response:
        """Sign one: for the admin, or a backend with the grant `sessions`, of what it may read itself."""
        caller = self._context.caller(request)
        caller.check_grant("sessions")
        wanted = decoded(request.body, Wanted)
        uid = user_number("uid", str(wanted.uid))
        patterns = tuple(check_pattern(pattern) for pattern in wanted.subscribe)
        if not 1 <= wanted.ttl <= USER_TOKEN_SECONDS:
            raise InputInvalid("ttl", f"is not a number of seconds from 1 to {USER_TOKEN_SECONDS:,}")
        for pattern in patterns:
            caller.check_subscribe(pattern)
        now = self._context.clock.now_ms() // 1000
        token = self._context.gate.keys.issue(uid, subscribe=patterns, ttl=wanted.ttl, now=now)
        return Response(201, _encode({"token": token, "uid": uid, "expires": now + wanted.ttl}))

    def admit(self, request: Request) -> None:
        """Turn strangers away before a byte of their body is read."""
        only(request)
        self._context.known(request).check_grant("sessions")
