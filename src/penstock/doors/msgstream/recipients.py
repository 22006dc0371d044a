"""Sessions as operators see them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.api.recipients import DISCONNECT, Action, ActionImpossible, MailboxRecipients, RecipientView
from penstock.core.liveness import node_of
from penstock.doors.msgstream.records import DOOR, is_actor, mailbox_of
from penstock.doors.msgstream.sessions import Sessions
from penstock.wire.msgstream_actions import SessionRecord


class SessionRecipients(MailboxRecipients):
    """The sessions of all nodes, connected or not."""

    kind = "session"

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions.context.mailbox)
        self._sessions = sessions

    async def each(self) -> AsyncIterator[RecipientView]:
        async for actor, found in self._sessions.owned.each():
            if found.payload is not None and not self._sessions.why_not(actor, found.payload, None):
                yield self._view(actor, found.payload)

    async def find(self, name: str) -> RecipientView | None:
        found = (await self._sessions.owned.look(name)).payload if is_actor(name) else None
        if found is None or self._sessions.why_not(name, found, None):
            return None
        return await self.complete(self._view(name, found))

    def _view(self, actor: str, record: SessionRecord) -> RecipientView:
        session, elsewhere = self._sessions.known.get(actor), self._sessions.owned.is_elsewhere(record)
        transport = session.transport if session and not elsewhere else ""
        view = RecipientView(
            "session", actor, DOOR, "served elsewhere" if elsewhere else "connected" if transport else "away",
            record.follow, record.after, None, "items", since_ms=record.created_ms, connections=int(bool(transport)),
            node=node_of(record.owner) if elsewhere else "", actions=DISCONNECT if transport else (),
        )  # fmt: skip
        if session is not None and not elsewhere:
            view.position, view.lag = session.machine.position, len(session.machine.packs)
        return view

    async def box(self, name: str) -> tuple[str, str] | None:
        record = (await self._sessions.owned.look(name)).payload
        return None if record is None else (mailbox_of(name), record.month)

    async def act(self, view: RecipientView, action: Action) -> None:
        """End its connection; the session stays, and so does what waits in it."""
        session = self._sessions.known.get(view.name)
        if session is None or session.machine.connection is None:
            raise ActionImpossible(f"{view.name} is not connected any more", "Look at it again.")
        session.dismiss(session.machine.connection)
