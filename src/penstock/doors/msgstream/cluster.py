"""What nodes tell each other of sessions, beside who serves them (`core/ownership.py`).

These are hints. What they tell of is in the mailbox or in the registry by then, so a node finds out by itself when one
is lost (`core/change_watch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.api.context import Context
from penstock.core.change_watch import MailboxChange
from penstock.core.liveness import node_of
from penstock.core.ownership import Ownership
from penstock.doors.msgstream.records import PREFIX
from penstock.doors.msgstream.session import Session
from penstock.errors import PenstockError
from penstock.wire.msgstream_actions import SessionRecord

TOPIC: Final = "msgstream"


class SessionHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Packs were stored for an actor; or its session with that digest has ended for a reason."""

    actor: str
    digest: str = ""
    ended: str = ""


class SessionHints:
    """Tells other nodes, and hears what they tell."""

    def __init__(self, context: Context, known: Mapping[str, Session], owned: Ownership[SessionRecord]) -> None:
        self._context, self._known, self._owned = context, known, owned
        context.bus.listen(TOPIC, self._hear)
        context.change_poller.on_mailbox(self._mailbox_changed)

    async def tell_of_packs(self, actor: str, record: SessionRecord) -> None:
        await self._tell(record, SessionHint(actor))

    async def tell_of_end(self, actor: str, record: SessionRecord) -> None:
        await self._tell(record, SessionHint(actor, record.digest, record.ended))

    async def _tell(self, record: SessionRecord, hint: SessionHint) -> None:
        """Tell the node that serves the session."""
        bus = self._context.bus
        if not bus.alone and (node := node_of(record.owner)) != bus.node:
            await bus.send(node, TOPIC, msgspec.json.encode(hint))

    def _hear(self, topic: str, message: bytes) -> None:
        hint = msgspec.json.decode(message, type=SessionHint)
        session = self._known.get(hint.actor)
        if session is not None and not hint.ended:
            session.home.tasks.start(self._refresh(session))
        elif session is not None and hint.digest == session.record.digest:
            session.end(hint.ended)

    def _mailbox_changed(self, change: MailboxChange) -> None:
        session = self._known.get(change.recipient.removeprefix(PREFIX))
        if session is None or not session.transport or not change.recipient.startswith(PREFIX):
            return
        if change.month == session.record.month and change.next_number - 1 > session.machine.newest:
            session.home.tasks.start(self._refresh(session))

    async def _refresh(self, session: Session) -> None:
        """Have the packs read that others stored, if this node still serves the session: a hint may be late."""
        try:
            found = await self._owned.look(session.actor)
        except PenstockError as error:
            session.failed(error)
            return
        if found.payload is not None and found.payload.owner == self._context.members.me:
            session.hear_of_packs()
