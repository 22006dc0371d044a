"""Pushers as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from penstock.api.recipients import (
    HALTED,
    RUNNING,
    Action,
    ActionImpossible,
    RecipientKind,
    RecipientView,
    Redriven,
    WaitingItem,
    WaitingPage,
)
from penstock.core.trouble import Trouble
from penstock.doors.eventhorizon.cluster import ManagedPusher, Pushers
from penstock.doors.eventhorizon.requests import PusherView
from penstock.limits import PAGE_ENTRIES


class PusherRecipients(RecipientKind):
    """The pushers of all nodes."""

    kind, actions = "pusher", (*RUNNING, *HALTED)

    def __init__(self, pushers: Pushers) -> None:
        self._pushers = pushers

    async def each(self) -> AsyncIterator[RecipientView]:
        await self._pushers.refresh()
        pushers = list(self._pushers.all.values())
        for begin in range(0, len(pushers), PAGE_ENTRIES):
            some = pushers[begin : begin + PAGE_ENTRIES]
            elsewhere = await self._pushers.views_elsewhere(managed.id for managed in some)
            for managed in some:
                yield self._view(managed, elsewhere.get(managed.id))

    def _view(self, managed: ManagedPusher, elsewhere: PusherView | None) -> RecipientView:
        shown = elsewhere or self._pushers.view(managed)
        halted = managed.record.state != "running"
        return RecipientView(
            "pusher", managed.id, "eventhorizon", shown.state, (shown.subscription,) if shown.subscription else (),
            None, shown.lag_bytes, "bytes", shown.error, _ms(shown.error_time), managed.record.created_ms,
            shown.node if elsewhere else "", actions=HALTED if halted else RUNNING,
        )  # fmt: skip

    async def act(self, view: RecipientView, action: Action) -> None:
        """Pause, resume, or try again at once; done on whichever node it runs."""
        managed = self._pushers.all.get(view.name)
        if managed is None:
            raise ActionImpossible(f"pusher {view.name} was just removed", "Look at the list again.")
        if action == "pause":
            await self._pushers.pause(managed)
        elif action == "resume":
            await self._pushers.resume(managed)
        elif not await self._pushers.retry(managed):
            raise ActionImpossible(f"pusher {view.name} runs on no node now", "Try again in a few seconds.")

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """The streams that the app is behind in."""
        managed = self._pushers.all.get(view.name)
        if managed is None or managed.pusher is None:
            return WaitingPage([], words=f"What waits is known to the node that runs it: {view.node or 'none now'}.")
        behind = self._pushers.behind(managed.pusher)
        items = [WaitingItem(stream=one.stream, bytes=one.bytes, about=one.words) for one in behind[:limit]]
        return WaitingPage(items, len(behind) > limit)

    async def redrive(self, troubles: Sequence[Trouble]) -> Redriven | None:
        """What failed is tried at once. An app that was gone is pushed to again from where it is."""
        name = troubles[0].recipient
        for managed in list(self._pushers.all.values()):
            if troubles[0].door == "eventhorizon" and name in (managed.id, self._pushers.view(managed).subscription):
                if managed.record.state == "gone":
                    await self._pushers.resume(managed)
                elif managed.record.state == "paused":
                    return Redriven(0, "the pusher is paused: resume it")
                elif not await self._pushers.retry(managed):
                    return Redriven(0, "the pusher runs on no node now")
                return Redriven(len(troubles))
        another = Redriven(0, "the app is pushed to by another program")
        return another if troubles[0].door == "eventhorizon" else None


def _ms(text: str) -> int | None:
    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else None
