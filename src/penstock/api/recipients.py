"""Who receives, as operators see it: each door says who its recipients are, and what can be done about them.

A kind is a class of recipients: wires, sessions, user agents, pushers, bindings, channels, tails, consumers. `each`
gives views that cost no look at the storage; `complete` adds what does, for the few that are shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.trouble import Trouble
from penstock.errors import Conflict, NotFound
from penstock.values import Item

Action = Literal["pause", "resume", "retry", "disconnect"]
ACTIONS: Final[tuple[Action, ...]] = ("pause", "resume", "retry", "disconnect")
DISCONNECT: Final[tuple[Action, ...]] = ("disconnect",)  # of those who have a connection
RUNNING: Final[tuple[Action, ...]] = ("pause", "retry")  # of those who are sent to
HALTED: Final[tuple[Action, ...]] = ("resume",)


class ActionImpossible(Conflict):
    """What is asked for makes no sense for this recipient, or not as it is now. Nothing has changed."""

    code = "action_impossible"

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class RecipientView(msgspec.Struct, gc=False):
    """One recipient, as its door sees it now."""

    kind: str
    name: str  # as the ledger has it; for a pusher or a binding its id
    door: str
    state: str  # live, behind, connected, away, waiting, sending, failing, paused, gone, open …
    streams: tuple[str, ...] = ()
    position: int | None = None  # the id up to which it has what is for it
    lag: int | None = None  # in *unit*; None where nobody knows without a look at the storage
    unit: str = "ids"
    error: str = ""  # the last one
    error_ms: int | None = None
    since_ms: int | None = None
    node: str = ""  # where it is, if that is another node
    connections: int = 0
    actions: tuple[Action, ...] = ()


class WaitingItem(msgspec.Struct, gc=False):
    """Something that waits for one recipient."""

    entry: int | None = None
    message: str = ""
    stream: str = ""
    ms: int | None = None
    bytes: int | None = None
    about: str = ""


class WaitingPage(msgspec.Struct):
    """What waits for one recipient, the oldest first."""

    items: list[WaitingItem]
    more: bool = False
    words: str = ""


class Redriven(NamedTuple):
    """How many deliveries are tried again, and why the rest cannot be."""

    deliveries: int
    why: str = ""


class RecipientKind:
    """A class of recipients."""

    kind: str
    actions: tuple[Action, ...] = ()
    known_everywhere = True  # False: each node knows those that are connected to it, and no others

    def each(self) -> AsyncIterator[RecipientView]:
        """Everybody of this kind."""
        raise NotImplementedError

    async def find(self, name: str) -> RecipientView | None:
        async for view in self.each():
            if view.name == name:
                return await self.complete(view)
        return None

    async def complete(self, view: RecipientView) -> RecipientView:
        """Add what takes a look at the storage."""
        return view

    async def act(self, view: RecipientView, action: Action) -> None:
        """Do something about one of them that its view allows."""
        raise NotImplementedError

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        raise NotImplementedError

    async def redrive(self, troubles: Sequence[Trouble]) -> Redriven | None:
        """Try again what is in trouble for one recipient; None if it is no recipient of this kind."""
        return None


class MailboxRecipients(RecipientKind):
    """Recipients with a connection, for whom a mailbox keeps what they have not confirmed."""

    actions = DISCONNECT

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def box(self, name: str) -> tuple[str, str] | None:
        """The name of its mailbox, and the month; None if there is no such recipient."""
        raise NotImplementedError

    async def complete(self, view: RecipientView) -> RecipientView:
        """Add how much waits."""
        if view.lag is None and (box := await self.box(view.name)) is not None:
            try:
                view.lag = (await self._mailbox.head(*box)).pending
            except NotFound:  # the month is gone
                view.lag = 0
        return view

    async def waiting(self, view: RecipientView, limit: int) -> WaitingPage:
        """What is not confirmed."""
        box = await self.box(view.name)
        if box is None:
            return WaitingPage([])
        try:
            items = await self._mailbox.take(*box, limit=limit)
        except NotFound:
            return WaitingPage([])
        return WaitingPage([_shown(item) for item in items], len(items) == limit)


async def entries_waiting(log: Log, patterns: Sequence[str], after: int, limit: int) -> WaitingPage:
    """Entries of the log that match and come after an id."""
    if not patterns:
        return WaitingPage([])
    page = await log.read_after(tuple(patterns), after, limit=limit)
    items = [WaitingItem(one.id, "", one.stream, one.published_ms, len(one.body)) for one in page.entries]
    return WaitingPage(items, page.more and len(items) == limit)


def _shown(item: Item) -> WaitingItem:
    size = len(item.body) if item.body else None
    return WaitingItem(item.entry_id, item.message_id, item.channel, item.stored_ms, size)
