"""Health, why, backup: what operators ask."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from penstock import __version__
from penstock.api.context import Context, decoded, integer, only
from penstock.api.describing import INTEGER, STRING, an_object, operation, shown_as, text
from penstock.api.v1.why_recipients import WHICH_ENTRY
from penstock.core.why import Folded, Why, WhyAnswer
from penstock.errors import InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.limits import MESSAGE_ID_CHARACTERS, RECIPIENT_BYTES

_encode = msgspec.json.Encoder().encode
_READY = an_object(status=STRING, uptime_seconds=INTEGER, durability=STRING, upto=INTEGER)
Backup = Callable[[Path], Awaitable[object]]


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/backup`."""

    directory: Annotated[str, shown_as(pattern="^/[^\\x00]*$", maxLength=4096)]


class OperationsApi:
    """Answers operators."""

    def __init__(
        self, context: Context, backup: Backup, readiness: Callable[[], str], folded: Folded | None = None
    ) -> None:
        self._context, self._backup, self._readiness = context, backup, readiness
        self.lookup = Why(context.log, context.ledger, context.hub, folded, context.other_workers)
        self._started = time.monotonic()

    @operation("The process answers.", answers={200: an_object(status=STRING, version=STRING)}, public=True)
    def alive(self, request: Request) -> Response:
        """The process answers: nothing more is said."""
        return Response(200, _encode({"status": "ok", "version": __version__}))

    @operation("Requests should be sent here.", answers={200: _READY, 503: _READY}, public=True)
    def ready(self, request: Request) -> Response:
        """Whether requests should be sent here, and why not."""
        why_not = self._readiness()
        body: dict[str, object] = {
            "status": why_not or "ready",
            "uptime_seconds": int(time.monotonic() - self._started),
            "durability": self._context.log.durability,
            "upto": self._context.log.followed,
        }
        # A failing background loop does not make the node unready: a load balancer should keep sending requests.
        if failing := self._context.background.failing:
            body["failing"] = [
                {"loop": one.loop, "since": _shown(one.since_ms), "rounds": one.rounds} for one in failing
            ]
        return Response(503 if why_not else 200, _encode(body))

    def version(self, request: Request) -> Response:
        return Response(200, _encode({"name": "penstock", "version": __version__}))

    @operation(
        "What became of an entry, or of a message, for a recipient.",
        query=(
            WHICH_ENTRY,
            text("recipient", "Name of the recipient.", least=1, most=RECIPIENT_BYTES, required=True),
        ),
        answers={200: WhyAnswer},
        errors=(404, 410),
    )
    async def why(self, request: Request) -> Response:
        """What became of an entry, or of a message, for a recipient."""
        self._context.caller(request).check_admin("why")
        only(request, "entry", "recipient")
        recipient = request.params.get("recipient", "")
        if not 0 < len(recipient) <= RECIPIENT_BYTES:
            raise InputInvalid("parameter recipient", f"is not 1 to {RECIPIENT_BYTES} characters")
        what = request.params.get("entry", "")
        if what.isascii() and what.isdigit():
            return Response(200, _encode(await self.lookup.entry(integer(request, "entry", None, least=1), recipient)))
        if not 0 < len(what) <= MESSAGE_ID_CHARACTERS:
            raise InputInvalid("parameter entry", "is neither the id of an entry nor that of a message")
        return Response(200, _encode(await self.lookup.item(what, recipient)))

    @operation(
        "Copy the data of the running node into a directory of its machine.",
        body=BackupRequest,
        answers={201: None},
        errors=(409, 507),
    )
    async def backup(self, request: Request) -> Response:
        """Copy the data of the running node into a directory on its machine."""
        self._context.caller(request).check_admin("backup")
        directory = Path(decoded(request.body, BackupRequest).directory)
        if not directory.is_absolute():
            raise InputInvalid("directory", "is not an absolute path on the server's machine")
        return Response(201, _encode(await self._backup(directory)))


def _shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
