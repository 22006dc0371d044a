"""User agents that were not seen for 30 to 60 days are dropped with their month, as the seed says."""

from __future__ import annotations

import logging

from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.peers import Outcome
from penstock.doors.webpush.records import RouterRecord
from penstock.wire.webpush import is_uaid

log = logging.getLogger("penstock.webpush")


class Unseen:
    """Says goodbye to who is still on an old month."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def leave_month(self, month: str) -> None:
        """Drop every user agent of that month that is not connected; who is has to connect anew, and moves."""
        after = ""
        while heads := await self._agents.mailbox.recipients(month, after=after):
            after = heads[-1].recipient
            for head in heads:
                if is_uaid(head.recipient):
                    await self._leave(head.recipient, month)

    async def _leave(self, uaid: str, month: str) -> None:
        found = await self._agents.router.find(uaid)
        if found is None or found.record.month != month:
            # It moved on, or is gone: what lies here came too late, and its time ran out long ago.
            await self._agents.note_gone(uaid, month, "month_dropped")
            await self._agents.mailbox.forget(uaid, month)
        elif await self._is_connected(uaid, found.record):
            await self._agents.peers.supersede(found.record, uaid)
        else:
            await self._agents.drop(uaid, (month, *filter(None, (found.record.previous,))), "unseen")

    async def _is_connected(self, uaid: str, record: RouterRecord) -> bool:
        """Whether a session is there that only was never ended; connected user agents are not moved by themselves."""
        if not record.node:
            return False
        return await self._agents.peers.notify(record, uaid, record.month) in (Outcome.TAKEN, Outcome.LATER)
