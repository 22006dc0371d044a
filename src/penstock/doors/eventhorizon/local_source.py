"""This node as the source of a pusher that runs in it: where it reads, and where it records."""

from __future__ import annotations

from penstock.api.auth import Caller
from penstock.api.context import Context
from penstock.core.ledger import Recipient
from penstock.core.names import is_system
from penstock.doors.eventhorizon.reader import read_lines
from penstock.doors.eventhorizon.subscriptions import Subscriptions, Wake
from penstock.errors import Forbidden
from penstock.wire.eventhorizon import Cursor, ReadLines


class LocalSource:
    """The log of this node, as far as whoever set the pusher up may read it."""

    def __init__(self, context: Context, subscriptions: Subscriptions, owner: Caller) -> None:
        self._log, self._ledger = context.log, context.ledger
        self._subscriptions, self._owner = subscriptions, owner
        self._who: dict[str, Recipient] = {}

    async def read(self, cursor: Cursor) -> ReadLines:
        if not self._owner.may_read(cursor.stream):
            raise Forbidden(self._owner.subject, "subscribe", cursor.stream)
        return await read_lines(self._log, cursor)

    def watch(self, id: str, wake: Wake) -> None:
        self._subscriptions.watch(id, wake)

    def unwatch(self, id: str, wake: Wake) -> None:
        self._subscriptions.unwatch(id, wake)

    async def record(self, id: str, stream: str, ids: list[int], *states: tuple[str, str]) -> None:
        """Write down what happened to these entries. `acked` is durable before anybody can see its effect."""
        if is_system(stream) or not ids:
            return
        who = self._who.get(id)
        if who is None:
            who = self._who[id] = Recipient("eventhorizon", id)
        for state, reason in states:
            self._ledger.record(who, state, stream, ids[0], ids[-1], reason=reason)
        if any(state in ("acked", "dead") for state, _ in states):
            await self._ledger.flush()
