"""Bindings as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from penstock.api.context import Context
from penstock.api.recipients import (
    HALTED,
    RUNNING,
    Action,
    ActionImpossible,
    RecipientKind,
    RecipientView,
    Redriven,
    WaitingPage,
    entries_waiting,
)
from penstock.core.trouble import Trouble
from penstock.doors.webpush_sender.binding import BindingRecord
from penstock.doors.webpush_sender.bindings import BINDINGS, Bindings


class BindingRecipients(RecipientKind):
    """The bindings of all nodes."""

    kind, actions = "binding", (*RUNNING, *HALTED)

    def __init__(self, context: Context, bindings: Bindings) -> None:
        self._context, self._bindings = context, bindings

    async def each(self) -> AsyncIterator[RecipientView]:
        async for found in self._bindings.records():
            yield self._view(found.key.removeprefix(BINDINGS), msgspec.json.decode(found.value, type=BindingRecord))

    async def find(self, name: str) -> RecipientView | None:
        record = await self._bindings.find(name)
        return None if record is None else await self.complete(self._view(name, record))

    def _view(self, id: str, record: BindingRecord) -> RecipientView:
        binding, newest = self._bindings.running.get(id), self._context.hub.position
        view = RecipientView(
            "binding", id, "webpush", "elsewhere", (record.stream,), since_ms=record.created_ms,
            actions=HALTED if record.paused else RUNNING,
        )  # fmt: skip
        if binding is not None:
            status = binding.status
            view.position, view.error, view.error_ms = binding.position, status.error, status.error_ms
            view.state = "failing" if status.error else "sending" if binding.full else "waiting"
            view.lag = newest - binding.position if binding.full else binding.feed.lag
        if record.paused:
            view.state = "paused"
        return view

    async def complete(self, view: RecipientView) -> RecipientView:
        if view.position is None and (record := await self._bindings.find(view.name)) is not None:
            view.position = await self._bindings.position(view.name, record)
        return view

    async def act(self, view: RecipientView, action: Action) -> None:
        """Pause, resume, or try again at once."""
        if action == "retry":
            if await self._bindings.try_again(view.name) is None:
                raise ActionImpossible(f"no node sends for binding {view.name} now", "Try again in a few seconds.")
            return
        record = await self._bindings.find(view.name)
        if record is not None:
            await self._bindings.keep(view.name, msgspec.structs.replace(record, paused=action == "pause"))

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """Entries of its stream that are not settled."""
        return await entries_waiting(self._context.log, view.streams, view.position or 0, limit)

    async def redrive(self, troubles: Sequence[Trouble]) -> Redriven | None:
        """What failed is tried at once, and what was dropped is sent once more."""
        if troubles[0].door != "webpush" or not troubles[0].stream:
            return None
        id = troubles[0].recipient
        record = await self._bindings.find(id)
        if record is None or any(one.state == "dead" for one in troubles):
            return Redriven(0, "the binding is gone: the browser must subscribe again")
        if record.paused:
            return Redriven(0, "the binding is paused: resume it")
        dropped = [one.first for one in troubles if one.state != "retried"]
        sent = await self._bindings.try_again(id, dropped)
        if sent is None:
            return Redriven(0, "no node sends for the binding now")
        tried = len(troubles) - len(dropped) + sent
        return Redriven(tried, "the body is gone, or larger than a push message may be")
