"""Wires as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.api.context import Context
from penstock.api.recipients import DISCONNECT, Action, RecipientKind, RecipientView, WaitingPage, entries_waiting
from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import DOOR, Wires


class WireRecipients(RecipientKind):
    """The wires that are open on this node."""

    kind, actions = "wire", DISCONNECT
    known_everywhere = False

    def __init__(self, context: Context, wires: Wires) -> None:
        self._context, self._wires = context, wires

    async def each(self) -> AsyncIterator[RecipientView]:
        began_ms = self._context.clock.now_ms() - 1000 * self._wires.time()  # when the loop's clock was at 0
        for wire in self._wires.all:
            yield self._view(wire, began_ms)

    async def find(self, name: str) -> RecipientView | None:
        wire = self._wires.named(name)
        return self._view(wire, self._context.clock.now_ms() - 1000 * self._wires.time()) if wire else None

    def _view(self, wire: DeviceWire, began_ms: float) -> RecipientView:
        feed, since_ms = wire.feed, int(began_ms + 1000 * wire.opened)
        lag = feed.lag
        return RecipientView(
            "wire", wire.who.name, DOOR, "behind" if lag else "live", feed.patterns, feed.reached, lag,
            since_ms=since_ms, connections=1, actions=DISCONNECT,
        )  # fmt: skip

    async def act(self, view: RecipientView, action: Action) -> None:
        """End the answer properly: the device comes back with its position."""
        if (wire := self._wires.named(view.name)) is not None:
            wire.end("")

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """What its streams have beyond its position; some of it may be for the user's other devices."""
        after = self._context.hub.position if not view.lag else view.position or 0
        return await entries_waiting(self._context.log, view.streams, after, limit)
