"""User agents as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.api.recipients import DISCONNECT, Action, ActionImpossible, MailboxRecipients, RecipientView
from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.router_table import RouterRecord
from penstock.wire.webpush import Close


class AgentRecipients(MailboxRecipients):
    """The user agents of all nodes, connected or not."""

    kind = "agent"

    def __init__(self, agents: Agents) -> None:
        super().__init__(agents.messages.mailbox)
        self._agents = agents

    async def each(self) -> AsyncIterator[RecipientView]:
        async for uaid, record in self._agents.router.each():
            yield self._view(uaid, record)

    async def find(self, name: str) -> RecipientView | None:
        record = await self._agents.router.find(name)
        return None if record is None else await self.complete(self._view(name, record))

    def _view(self, uaid: str, record: RouterRecord) -> RecipientView:
        here = uaid in self._agents.table
        elsewhere = not here and record.node not in ("", self._agents.router.node)
        return RecipientView(
            "agent", uaid, "webpush", "connected" if here else "served elsewhere" if elsewhere else "away",
            unit="items", since_ms=record.connected_at or None, node=record.node if elsewhere else "",
            connections=int(here), actions=DISCONNECT if here else (),
        )  # fmt: skip

    async def box(self, name: str) -> tuple[str, str] | None:
        record = await self._agents.router.find(name)
        return None if record is None else (name, record.month)

    async def act(self, view: RecipientView, action: Action) -> None:
        """Close its WebSocket; it comes back by itself."""
        session = self._agents.table.get(view.name)
        if session is None:
            raise ActionImpossible(f"{view.name} is not connected any more", "Look at it again.")
        session.finish(Close.GOING_AWAY)
