"""The router table: which node a user agent is connected to, and which month its messages are in.

A record is owned by the node where the newest session is (`core/ownership.py`); a node that loses one ends its session.
`connected_at` is the session's generation: whoever acts on what it read earlier names the generation it meant. A record
outlives its session, and names its node until somebody finds that out. What makes reconnects safe is an order:

    a session   writes its record, then reads the storage
    an endpoint stores a message, then reads the record

One of the two sees the other's write.

What an endpoint looks up for each message are the record and its month's channels. A node that is alone is the only
writer of both, so it may remember them (`Lookup`): what it has read stays true until one of its own writes has come
through, and each of those ends in `forget`. A remembered record is thus never older than one that was read the moment
before such a write. With other nodes about, everything is read anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Self

import msgspec

from penstock.api.context import Context
from penstock.core.mailbox import Mailbox
from penstock.core.ownership import ABSENT, Ownership, RecordForm, Rule
from penstock.core.registry import change
from penstock.errors import PenstockError
from penstock.values import Record

PUSH_AGENTS_KNOWN: Final = 50_000
"""User agents whose router record and channels are remembered on a node that is alone. Over it: all are
forgotten, and read again."""

PREFIX = "webpush/ua/"


class RouterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One user agent."""

    month: str  # the table that its messages are in
    node: str = ""  # where it is connected; empty when nobody knows
    address: str = ""  # of that node's internal listener; empty when it is reached over the bus
    connected_at: int = 0
    previous: str = ""  # the table before: a message may have come too late to be seen in it
    member: str = ""  # that node, in the life in which it wrote this


Decide = Callable[[RouterRecord | None], RouterRecord | None]
Lost = Callable[[str, RouterRecord, RouterRecord | None], None]
_FORM = RecordForm(RouterRecord, "member")


class AlreadyConnected(PenstockError):
    """A newer session of this user agent was faster."""

    code = "already_connected"
    remedy = "Use the newer connection."


class RouterTable:
    """The records, from one node's point of view. *lost* hears what this node had, and what the record says now."""

    def __init__(self, context: Context, lost: Lost) -> None:
        self._registry, self._alone, self.node = context.registry, context.bus.alone, context.bus.node
        self.address = ""  # of our internal listener, once it listens
        self.changed: Callable[[str], None] = lambda uaid: None  # hears of every write of ours that came through
        self._owned = Ownership(
            context.registry, context.members, PREFIX, _FORM, rule=Rule.NEWEST, bus=context.bus,
            change_poller=context.change_poller, background=context.background, lost=lost,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self._owned.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._owned.__aexit__(*error)

    async def each(self) -> AsyncIterator[tuple[str, RouterRecord]]:
        """Every user agent that is known, with its record."""
        async for uaid, found in self._owned.each():
            if found.payload is not None:
                yield uaid, found.payload

    async def find(self, uaid: str) -> RouterRecord | None:
        """The record as it is now."""
        return (await self._owned.look(uaid)).payload

    async def add(self, uaid: str, month: str, at_ms: int) -> None:
        """Write the record of a new user agent that is connected here."""

        def decide(before: RouterRecord | None) -> RouterRecord:
            if before is not None:
                raise AlreadyConnected(f"{uaid} exists already")
            return RouterRecord(month, self.node, self.address, at_ms)

        self._noted(uaid, await self._owned.claim(uaid, decide, seen=ABSENT))

    async def connect(self, uaid: str, at_ms: int) -> RouterRecord | None:
        """Make this node the one where the user agent is, and tell the one where it was; None if nobody knows it.

        The later of two sessions wins, whatever the clocks of the nodes say; of two that come at the same
        moment the one with the greater `connected_at`: the other one gets `AlreadyConnected`.
        """
        found = await self._owned.look(uaid)
        if found.payload is None:
            return None
        at_ms = max(at_ms, found.payload.connected_at + 1)

        def decide(before: RouterRecord | None) -> RouterRecord | None:
            if before is not None and before.node and before.connected_at >= at_ms:
                raise AlreadyConnected(f"a newer session of {uaid} is on node {before.node}")
            return before and msgspec.structs.replace(before, node=self.node, address=self.address, connected_at=at_ms)

        claimed = await self._owned.claim(uaid, decide, seen=found)
        return claimed.payload if self._noted(uaid, claimed) and claimed is not None else None

    async def restore(self, uaid: str, connected_at: int) -> bool:
        """Say again that the session of that generation is here; False if there is a newer one."""
        return await self._change(uaid, connected_at, lambda now: now)

    async def move(self, uaid: str, connected_at: int, month: str) -> bool:
        """Have messages stored in another month from now on; False if there is a newer session."""
        return await self._change(
            uaid, connected_at, lambda now: msgspec.structs.replace(now, month=month, previous=now.month)
        )

    async def _change(self, uaid: str, connected_at: int, alter: Callable[[RouterRecord], RouterRecord]) -> bool:
        """Change what the record says now, not what it said when somebody decided, as long as it is that session's."""

        def decide(before: RouterRecord | None) -> RouterRecord | None:
            if before is None or before.connected_at != connected_at:
                return None
            return msgspec.structs.replace(alter(before), node=self.node, address=self.address)

        return self._noted(uaid, await self._owned.claim(uaid, decide))

    async def clear(self, uaid: str, seen: RouterRecord) -> bool:
        """Forget the node of a session that is not there; False if there is a newer session by now."""

        def decide(record: Record | None) -> bytes | None:
            now = _FORM.decode(record.value) if record is not None else None
            if now is None or now.connected_at != seen.connected_at:
                return None
            return _FORM.encode(msgspec.structs.replace(now, node="", address="", member=""))

        record, written = await change(self._registry, PREFIX + uaid, decide)
        if written and record is not None:
            self.changed(uaid)
            if seen.member:
                self._owned.tell(seen.member, uaid, record.version)  # it may be there all the same
        return record is not None and _FORM.decode(record.value).connected_at == seen.connected_at

    async def drop(self, uaid: str) -> None:
        """Forget the user agent."""
        await self._registry.delete(PREFIX + uaid)
        self.left(uaid)
        self.changed(uaid)

    def left(self, uaid: str) -> None:
        """Its session here is over; the record stays."""
        self._owned.forget(uaid)

    def _noted(self, uaid: str, claimed: object | None) -> bool:
        if claimed is not None:
            self.changed(uaid)
            if self._alone:  # nobody can take it away: it need not be remembered
                self._owned.forget(uaid)
        return claimed is not None


class KnownAgent(msgspec.Struct, frozen=True, gc=False):
    """One user agent, as it was looked up."""

    record: RouterRecord
    channels: tuple[str, ...]


class Lookup:
    """Finds user agents."""

    def __init__(self, router: RouterTable, mailbox: Mailbox, *, alone: bool) -> None:
        self._router, self._mailbox, self._alone = router, mailbox, alone
        self._known: dict[str, KnownAgent] = {}
        self._changes = 0
        router.changed = self.forget

    def forget(self, uaid: str) -> None:
        """Something about this user agent was written."""
        self._changes += 1
        self._known.pop(uaid, None)

    def known(self, uaid: str) -> KnownAgent | None:
        """The user agent, if it is remembered; never on a node that is not alone."""
        return self._known.get(uaid)

    async def find(self, uaid: str) -> KnownAgent | None:
        """The user agent, or None. `NotFound` if its month is gone."""
        if (known := self._known.get(uaid)) is not None:
            return known
        changes = self._changes
        record = await self._router.find(uaid)
        if record is None:
            return None
        known = KnownAgent(record, await self._mailbox.channels(uaid, record.month))
        if changes == self._changes:  # else a write may have overtaken what was read
            self.remember(uaid, known)
        return known

    def remember(self, uaid: str, known: KnownAgent) -> None:
        """Keep what is known of a user agent, if nobody else could change it."""
        if self._alone:
            if len(self._known) >= PUSH_AGENTS_KNOWN:
                self._known.clear()
            self._known[uaid] = known

    async def record(self, uaid: str) -> RouterRecord | None:
        """The router record alone, as it is now."""
        if (known := self._known.get(uaid)) is not None:
            return known.record
        return await self._router.find(uaid)
