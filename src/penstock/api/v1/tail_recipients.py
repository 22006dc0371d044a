"""Tails of Penstock's API, and consumers of the pipeline, as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from penstock.api.context import Context
from penstock.api.recipients import DISCONNECT, Action, RecipientKind, RecipientView, WaitingPage, entries_waiting
from penstock.api.v1.tail import TailWire
from penstock.core.feed import Feed
from penstock.core.registry import each

CONSUMERS: Final = "pipeline/consumers/"


class TailRecipients(RecipientKind):
    """The readers of `/v1/tail` on this node, one for each name, as in the ledger."""

    kind, actions = "tail", DISCONNECT
    known_everywhere = False

    def __init__(self, context: Context) -> None:
        self._context = context

    def _tails(self) -> list[tuple[Feed, TailWire]]:
        return [(feed, feed.sink) for feed in self._context.hub.feeds if isinstance(feed.sink, TailWire)]

    async def each(self) -> AsyncIterator[RecipientView]:
        found: dict[str, list[tuple[Feed, TailWire]]] = {}
        for feed, wire in self._tails():
            found.setdefault(wire.who.name, []).append((feed, wire))
        for name, tails in found.items():
            lag = max(feed.lag for feed, _ in tails)
            streams = tuple(dict.fromkeys(pattern for feed, _ in tails for pattern in feed.patterns))
            yield RecipientView(
                "tail", name, "v1", "behind" if lag else "live", streams, min(feed.reached for feed, _ in tails), lag,
                since_ms=min(wire.opened_ms for _, wire in tails), connections=len(tails), actions=DISCONNECT,
            )  # fmt: skip

    async def act(self, view: RecipientView, action: Action) -> None:
        """End every tail of that name properly; whoever wants to go on comes back with its position."""
        for _, wire in self._tails():
            if wire.who.name == view.name:
                wire.end()

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        after = self._context.hub.position if not view.lag else view.position or 0
        return await entries_waiting(self._context.log, view.streams, after, limit)


class ConsumerRecipients(RecipientKind):
    """Programs that read the export. The server stores where each began; only the program knows how far it has come."""

    kind = "consumer"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def each(self) -> AsyncIterator[RecipientView]:
        async for record in each(self._context.registry, CONSUMERS):
            position = _value(record.value).get("after")
            yield RecipientView("consumer", record.key.removeprefix(CONSUMERS), "export", "begun", position=position)

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """Unknown here."""
        return WaitingPage([], words="How far a consumer is, it keeps in its own checkpoint; shown is where it began.")


def _value(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}
