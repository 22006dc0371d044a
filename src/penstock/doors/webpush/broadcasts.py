"""Broadcasts: versions that concern every user agent, told to those that asked as soon as they change.

    webpush/broadcasts      one record: {"ID": "VERSION", …}, what was put since the first start

The setting `webpush.broadcasts` has the first versions; what was put comes before it. The record is the truth: a node
hears of a change over the bus, and looks at the record once a second besides, so that a lost hint costs a second.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Final, Protocol

import msgspec

from penstock.api.context import Context, decoded
from penstock.api.describing import STRING, an_object, operation, shown_as, text
from penstock.core.background import Loop
from penstock.core.registry import NEW, change
from penstock.core.waking import Waking
from penstock.errors import ConfigInvalid, InputInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import BROADCAST_ID_CHARACTERS, BROADCAST_VERSION_CHARACTERS, BROADCASTS
from penstock.settings import WebPushSettings
from penstock.values import Record

RECORD: Final = "webpush/broadcasts"
HINT: Final = "webpush.broadcasts"
LOOK_SECONDS = 1.0  # by which a lost hint delays a new version
_ID = re.compile(r"[!-~]+")
_VERSION = re.compile(r"[ -~]+")
_SHOWN_ID = text(
    "id",
    "Printable characters without a space; slashes stay as they are.",
    pattern=r"^(?!\.{1,2}$|errors$)[!-.0-~]+$",
    most=BROADCAST_ID_CHARACTERS,
    required=True,
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


class BroadcastListener(Protocol):
    """A user agent that wants to hear of new versions."""

    def tell_broadcasts(self) -> None: ...


class VersionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT."""

    version: Annotated[str, shown_as(pattern=r"^[ -~]+$", maxLength=BROADCAST_VERSION_CHARACTERS)]


class Broadcasts:
    """All broadcasts, and who wants to hear of them on this node."""

    def __init__(self, context: Context, settings: WebPushSettings) -> None:
        self._context = context
        self._first = dict(map(_first_version, settings.broadcasts))
        self.versions = dict(self._first)
        self._seen = NEW  # the record's version that these are of
        self._listeners: dict[BroadcastListener, None] = {}
        self._waking = Waking()
        self._look = asyncio.Event()
        self._looking: Loop | None = None
        context.bus.listen(HINT, lambda topic, message: self._look.set())

    async def start(self) -> None:
        """Know what was put; with other nodes about, keep looking for what they put."""
        await self.look()
        if not self._context.bus.alone:
            background = self._context.background
            self._looking = background.every(LOOK_SECONDS, "webpush.broadcasts", self.look, wake=self._look)

    async def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            await self._looking.stop()

    def join(self, listener: BroadcastListener) -> None:
        """Tell *listener* when a version changes."""
        self._listeners[listener] = None

    def leave(self, listener: BroadcastListener) -> None:
        """Tell it no more."""
        self._listeners.pop(listener, None)

    # ── changes ───────────────────────────────────────────────────────────────────────────────

    async def look(self) -> None:
        """Read the record, and tell what is new in it."""
        self._know(await self._context.registry.get(RECORD))

    def _know(self, record: Record | None) -> None:
        seen = record.version if record is not None else NEW
        if seen != self._seen:
            self._seen = seen
            self.versions = self._first | (_decode(record.value) if record is not None else {})
            for listener in self._listeners:
                self._waking.wake(listener.tell_broadcasts)

    async def _change(self, alter: Callable[[dict[str, str]], None]) -> None:
        """Change what was put, by compare-and-set; have all nodes look."""

        def decide(record: Record | None) -> bytes | None:
            before = _decode(record.value) if record is not None else {}
            after = dict(before)
            alter(after)
            return None if after == before else _encode(after)

        record, written = await change(self._context.registry, RECORD, decide)
        if written:
            self._know(record)
            await self._context.bus.hint(HINT, b"")

    # ── the calls ─────────────────────────────────────────────────────────────────────────────

    def routes(self) -> list[Route]:
        """Their rows of the table."""
        small, admit = WHOLE(4096), self._context.admitting(lambda caller: caller.check_admin("broadcasts"))
        return [
            Route("GET", "/v1/webpush/broadcasts", self.show_all, door="webpush"),
            Route("PUT", "/v1/webpush/broadcasts/**", self.put, body=small, admit=admit, door="webpush"),
            Route("DELETE", "/v1/webpush/broadcasts/**", self.delete, door="webpush"),
        ]

    @operation(
        "List the broadcasts, with their versions.",
        answers={200: an_object(broadcasts={"type": "object", "additionalProperties": STRING})},
    )
    def show_all(self, request: Request) -> Response:
        """All versions that this node knows."""
        self._context.caller(request).check_grant("webpush")
        return Response(200, _encode({"broadcasts": dict(sorted(self.versions.items()))}))

    @operation(
        "Give a broadcast a new version; user agents are told at once.",
        path=(_SHOWN_ID,),
        body=VersionRequest,
        answers={200: an_object(id=STRING, version=STRING)},
        errors=(507,),
    )
    async def put(self, request: Request) -> Response:
        """Give a broadcast a new version: every user agent that asked for it is told at once."""
        self._context.caller(request).check_admin("broadcasts")
        id, version = _check_id(request.captures[0]), _check_version(request.body)

        def alter(versions: dict[str, str]) -> None:
            versions[id] = version
            if len(self._first | versions) > BROADCASTS:
                raise TooLarge("broadcasts", len(self._first | versions), BROADCASTS)

        await self._change(alter)
        return Response(200, _encode({"id": id, "version": version}))

    @operation(
        "Forget what was put; the setting's version counts again.",
        path=(_SHOWN_ID,),
        answers={204: None},
        errors=(404, 507),
    )
    async def delete(self, request: Request) -> Response:
        """Forget what was put; the version of the setting counts again, if there is one."""
        self._context.caller(request).check_admin("broadcasts")
        id = _check_id(request.captures[0])

        def alter(versions: dict[str, str]) -> None:
            if versions.pop(id, None) is None:
                raise NotFound("broadcast", id)

        await self._change(alter)
        return Response(204)


def _check_id(id: str) -> str:
    if not _ID.fullmatch(id) or len(id) > BROADCAST_ID_CHARACTERS or id == "errors":
        why = f"is not 1 to {BROADCAST_ID_CHARACTERS} printable characters without a space, or is 'errors'"
        raise InputInvalid("broadcast id", why)
    return id


def _check_version(body: bytes) -> str:
    version = decoded(body, VersionRequest).version
    if not _VERSION.fullmatch(version) or len(version) > BROADCAST_VERSION_CHARACTERS:
        raise InputInvalid("version", f"is not 1 to {BROADCAST_VERSION_CHARACTERS} printable characters")
    return version


def _first_version(pair: str) -> tuple[str, str]:
    """A broadcast of the settings: its id and its version."""
    id, found, version = pair.partition("=")
    if not (id and found and version):
        raise ConfigInvalid("webpush.broadcasts", f"{pair!r} is not of the form ID=VERSION")
    return id, version
