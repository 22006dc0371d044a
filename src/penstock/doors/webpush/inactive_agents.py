"""User agents that are dropped: not seen for 30 to 60 days, with their month.

How many months are kept: `limits.py` (`MAILBOX_MONTHS`). `node/mailbox_months.py` calls this.
"""

from __future__ import annotations

from penstock.doors.webpush.agents import Agents
from penstock.doors.webpush.router_table import RouterRecord
from penstock.wire.webpush import NodeAnswer, is_uaid


async def leave_month(agents: Agents, month: str) -> None:
    """Drop every user agent of that month that is not connected.

    A connected one is disconnected: when it comes back, it moves to the present month.
    """
    after = ""
    while heads := await agents.messages.mailbox.recipients(month, after=after):
        after = heads[-1].recipient
        for head in heads:
            if is_uaid(head.recipient):
                await _leave(agents, head.recipient, month)


async def _leave(agents: Agents, uaid: str, month: str) -> None:
    record = await agents.router.find(uaid)
    if record is None or record.month != month:
        # It moved on, or is gone: what lies here came too late, and its time ran out long ago.
        await agents.messages.forget(uaid, month, "month_dropped")
    elif await _is_connected(agents, uaid, record):
        await agents.cluster.supersede(record, uaid)
    else:
        await agents.drop(uaid, (month, *filter(None, (record.previous,))), "unseen")


async def _is_connected(agents: Agents, uaid: str, record: RouterRecord) -> bool:
    """Whether the user agent is connected: a session that lasts for months stays in the month in which it began."""
    if not record.node:
        return False
    return await agents.cluster.notify(record, uaid, record.month) in (NodeAnswer.TAKEN, NodeAnswer.LATER)
