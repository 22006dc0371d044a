"""`GET /v1/why/recipients`: one entry or message, and what became of it for everybody."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.api.context import Context, integer, only
from penstock.api.describing import limit as limit_parameter
from penstock.api.describing import number, operation, text
from penstock.core.why import Why
from penstock.core.why_recipients import Way, WayAnswer, WayFilter
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import Route
from penstock.limits import MESSAGE_ID_CHARACTERS, RECIPIENT_BYTES, WAY_PAGE, WAY_RECIPIENTS

WHICH_ENTRY: Final = text(
    "entry",
    "Id of the entry, or of the message.",
    pattern=r"^(?:[1-9][0-9]{0,17}|[^\x00]*[^0-9\x00][^\x00]*)$",
    most=MESSAGE_ID_CHARACTERS,
    required=True,
)
"""What is asked about: an entry's id, or what cannot be one."""

_encode = msgspec.json.Encoder().encode


class WayApi:
    """Answers for operators."""

    def __init__(self, context: Context, why: Why) -> None:
        self._context, self._way = context, Way(context.log, context.hub, why)

    def routes(self) -> list[Route]:
        """Its part of the table."""
        return [Route("GET", "/v1/why/recipients", self.recipients, door="v1")]

    @operation(
        "What became of an entry, or of a message, for everybody: counts by state, and a page of recipients.",
        query=(
            WHICH_ENTRY,
            text("search", "Part of the recipient's name.", most=RECIPIENT_BYTES),
            text("state", "Only those in this state.", most=20),
            text("door", "Only those of this door.", most=20),
            number("from", "Skip so many of those that are found.", most=WAY_RECIPIENTS),
            limit_parameter("Recipients at most.", WAY_PAGE),
        ),
        answers={200: WayAnswer},
        errors=(404, 410),
    )
    async def recipients(self, request: Request) -> Response:
        """All recipients that have it or should have it; failed deliveries come first."""
        self._context.caller(request).check_admin("why")
        only(request, "entry", "search", "state", "door", "from", "limit")
        wanted = WayFilter(
            checked(request, "search", RECIPIENT_BYTES), checked(request, "state", 20), checked(request, "door", 20),
            integer(request, "from", 0, most=WAY_RECIPIENTS), integer(request, "limit", 100, least=1, most=WAY_PAGE),
        )  # fmt: skip
        what = request.params.get("entry", "")
        if what.isascii() and what.isdigit():
            return Response(200, _encode(await self._way.entry(integer(request, "entry", None, least=1), wanted)))
        if not 0 < len(what) <= MESSAGE_ID_CHARACTERS:
            raise InputInvalid("parameter entry", "is neither the id of an entry nor that of a message")
        return Response(200, _encode(await self._way.message(what, wanted)))


def checked(request: Request, name: str, most: int) -> str:
    """A text from the query, of so many characters at most; empty if it is not there."""
    found = request.params.get(name, "")
    if len(found) > most:
        raise InputInvalid(f"parameter {name}", f"has {len(found)} characters; {most} are allowed")
    return found
