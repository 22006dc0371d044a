"""The doors of a node: which there are, which are open, and the listener for other nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.api.context import Context
from penstock.api.door import Door, InternalDoor, MakeDoor
from penstock.doors.eventhorizon import EventHorizon
from penstock.doors.msgstream import MessageStreamDoor
from penstock.doors.sps import Sps
from penstock.doors.trickle import Trickle
from penstock.doors.webpush import WebPush
from penstock.doors.webpush_sender import WebPushSender
from penstock.errors import ConfigInvalid
from penstock.http.listener import Listener
from penstock.http.routing import Router
from penstock.settings import ServerSettings, Settings

log = logging.getLogger("penstock")

DOORS: dict[str, tuple[MakeDoor, ...]] = {
    "eventhorizon": (EventHorizon,),
    "sps": (Sps,),
    "webpush": (WebPush, WebPushSender),
    "trickle": (Trickle,),
    "msgstream": (MessageStreamDoor,),
}
"""The doors there are, besides Penstock's API, which is always open."""


def check_doors(names: tuple[str, ...]) -> None:
    """Refuse a door that does not exist."""
    known = ("all", "none", *DOORS)
    for name in names:
        if name not in known:
            raise ConfigInvalid("server.doors", f"there is no door {name!r}", remedy=f"Known: {', '.join(known)}.")


async def open_doors(stack: AsyncExitStack, context: Context, settings: Settings) -> list[Door]:
    """Enter the doors that the settings name; the *stack* leaves them."""
    names = settings.server.doors
    wanted = [make for name, makes in DOORS.items() if "all" in names or name in names for make in makes]
    return [await stack.enter_async_context(make(context, settings)) for make in wanted]


async def open_internally(stack: AsyncExitStack, server: ServerSettings, doors: Iterable[Door]) -> None:
    """Open the listener for other nodes, if the settings name one, and tell its address to the doors that use it."""
    called = [door for door in doors if isinstance(door, InternalDoor)]
    if not server.internal_listen or not called:
        return
    # A node asks for many: caps are for those who come from outside.
    settings = replace(
        server, listen=server.internal_listen, connections_per_address=0, connections_per_token=0,
        requests_per_address=0.0, requests_per_token=0.0,
    )  # fmt: skip
    rows = [row for door in called for row in door.internal_routes()]
    listener = await stack.enter_async_context(Listener(Router(rows), settings))
    log.info("internal.listening", extra={"url": listener.url})
    for door in called:
        door.reachable(server.internal_address or listener.url)
