"""`POST /v1/log/erase`: take the bodies of events away for good, for the admin.

    {"ids":[17,18]}             these events
    {"stream":"/users/42"}      all that are in this stream now

What is wanted is appended to the stream `/_erased` before anything is done: the pipeline's job `erase` reads it there
and takes the bodies out of the lake, too. Whoever gets no answer asks again; to erase something twice does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, Final

import msgspec

from penstock.api.context import Context, decoded, only
from penstock.api.describing import INTEGER, LARGEST, NAME_FIELD, an_object, operation, shown_as
from penstock.core.names import check_name, is_system
from penstock.core.wanted_streams import WantedStreams
from penstock.errors import InputInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import ERASE_IDS
from penstock.values import Batch, Draft, Entry, Kind

STREAM: Final = "/_erased"
_encode = msgspec.json.Encoder().encode


class EraseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    ids: Annotated[list[Annotated[int, shown_as(minimum=1, maximum=LARGEST)]], shown_as(maxItems=ERASE_IDS)] = []
    stream: Annotated[str, shown_as(anyOf=[NAME_FIELD.extra_json_schema, {"maxLength": 0}])] = ""


class ErasureApi:
    """Erases, and says in the log that it did."""

    def __init__(self, context: Context) -> None:
        self._context, self._log = context, context.log
        context.log.follow(self._forget, WantedStreams(STREAM))

    def routes(self) -> list[Route]:
        """Its part of the table."""
        body, admit = WHOLE(64 * 1024), self._context.admitting(lambda caller: caller.check_admin("erase"))
        return [Route("POST", "/v1/log/erase", self, body=body, timeout=None, admit=admit, door="v1")]

    def _forget(self, entries: Sequence[Entry]) -> None:
        """Bodies in this node's memory go as well, whichever node was asked."""
        for entry in entries:
            if entry.stream == STREAM:
                self._context.hub.forget_recent()

    @operation(
        "Take the bodies of events away for good.",
        body=EraseRequest,
        answers={200: an_object(request=INTEGER, entries=INTEGER)},
        errors=(404, 507),
    )
    async def __call__(self, request: Request) -> Response:
        """Erase; the answer comes when the log does not have the bodies any more."""
        self._context.caller(request).check_admin("erase")
        only(request)
        wanted = decoded(request.body, EraseRequest)
        if bool(wanted.ids) == bool(wanted.stream):
            raise InputInvalid("body", "must have exactly one of ids and stream")
        erase = self._stream(wanted.stream) if wanted.stream else self._ids(wanted.ids)
        return Response(200, _encode(await erase))

    async def _ids(self, ids: list[int]) -> dict[str, Any]:
        if len(ids) > ERASE_IDS:
            raise TooLarge("ids", len(ids), ERASE_IDS)
        pieces = [piece for id in sorted(set(ids)) for piece in await self._with_parts(id)]
        request = await self._say({"ids": pieces})
        return {"request": request, "entries": await self._log.erase(ids)}

    async def _with_parts(self, id: int) -> list[int]:
        """The id of an event, and those of the entries in which a large one goes on."""
        entry = await self._log.entry(id)
        if entry is None:
            raise NotFound("entry", str(id), remedy="Give the id that publish answered.")
        if is_system(entry.stream) or entry.kind in (Kind.META, Kind.PART):
            raise InputInvalid("ids", f"{id} is no event of somebody's, and stays")
        page = await self._log.read_after((entry.stream,), id)
        return [id, *(part.id for part in takewhile(_is_part, page.entries))]

    async def _stream(self, stream: str) -> dict[str, Any]:
        if is_system(check_name(stream)):
            raise InputInvalid("stream", f"{stream} is the system's, and stays")
        head = await self._log.head(stream)
        if head is None:
            raise NotFound("stream", stream)
        request = await self._say({"stream": stream, "upto": head.last_id})
        erased, after, more = 0, self._log.trimmed_upto, True
        while more and after < head.last_id:
            page = await self._log.read_after((stream,), after)
            erased += await self._log.erase([entry.id for entry in page.entries if entry.id <= head.last_id])
            after, more = page.upto, page.more
        return {"request": request, "entries": erased}

    async def _say(self, wanted: dict[str, Any]) -> int:
        appended = await self._log.append(Batch((Draft(STREAM, _encode(wanted), "erase"),)))
        return appended.last.id


def _is_part(entry: Entry) -> bool:
    return entry.kind is Kind.PART
