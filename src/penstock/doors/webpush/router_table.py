"""The router table: which node a user agent is connected to, and which month its messages are in.

A record is changed by compare-and-set only. `connected_at` is its generation: it rises with each session, and
whoever acts on what it read earlier names the generation it meant. What makes reconnects safe is an order:

    a session   writes its record, then reads the storage
    an endpoint stores a message, then reads the record

One of the two sees the other's write.

What an endpoint looks up for each message are the record and its month's channels. A node that is alone is the only
writer of both, so it may remember them (`Lookup`): what it has read stays true until one of its own writes has come
through, and each of those ends in `forget`. A remembered record is thus never older than one that was read the moment
before such a write. With other nodes about, everything is read anew.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.mailbox import Mailbox
from penstock.core.registry import NEW, Registry
from penstock.errors import PenstockError, VersionMismatch
from penstock.limits import PUSH_AGENTS_KNOWN

PREFIX = "webpush/ua/"


class RouterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One user agent."""

    month: str  # the table that its messages are in
    node: str = ""  # where it is connected; empty when nobody knows
    address: str = ""  # of that node's internal listener; empty when it is reached over the bus
    connected_at: int = 0
    previous: str = ""  # the table before: a message may have come too late to be seen in it


class FoundRecord(msgspec.Struct, frozen=True):
    """A record as it was read."""

    record: RouterRecord
    version: int


class AlreadyConnected(PenstockError):
    """A newer session of this user agent was faster."""

    code = "already_connected"
    remedy = "Use the newer connection."


class RouterTable:
    """The records, from one node's point of view."""

    def __init__(self, registry: Registry, node: str) -> None:
        self._registry, self.node = registry, node
        self.address = ""  # of our internal listener, once it listens
        self.written: dict[str, int] = {}  # versions that we wrote, of user agents that are connected here
        self.changed: Callable[[str], None] = lambda uaid: None  # hears of every write of ours that came through

    async def find(self, uaid: str) -> FoundRecord | None:
        """The record as it is now."""
        record = await self._registry.get(PREFIX + uaid)
        if record is None:
            return None
        return FoundRecord(msgspec.json.decode(record.value, type=RouterRecord), record.version)

    async def add(self, uaid: str, month: str, at_ms: int) -> RouterRecord:
        """Write the record of a new user agent that is connected here."""
        record = RouterRecord(month, self.node, self.address, at_ms)
        stored = await self._registry.put(PREFIX + uaid, msgspec.json.encode(record), expect=NEW)
        self.written[uaid] = max(stored.version, self.written.get(uaid, 0))
        self.changed(uaid)
        return record

    async def connect(self, uaid: str, found: FoundRecord, at_ms: int) -> tuple[RouterRecord, RouterRecord] | None:
        """Make this node the one where the user agent is; return the record before and after.

        The later of two sessions wins, whatever the clocks of the nodes say; of two that come at the same
        moment the one with the greater `connected_at`: the other one gets `AlreadyConnected`. None if the
        user agent was dropped meanwhile.
        """
        at_ms = max(at_ms, found.record.connected_at + 1)
        while True:
            before = found.record
            after = msgspec.structs.replace(before, node=self.node, address=self.address, connected_at=at_ms)
            if await self._swap(uaid, found, after):
                return before, after
            again = await self.find(uaid)
            if again is None:
                return None
            if again.record.node and again.record.connected_at >= at_ms:
                raise AlreadyConnected(f"a newer session of {uaid} is on node {again.record.node}")
            found = again

    async def clear(self, uaid: str, seen: RouterRecord) -> bool:
        """Forget the node of a session that is not there; False if there is a newer session by now."""
        return await self._change(
            uaid, seen.connected_at, lambda now: msgspec.structs.replace(now, node="", address="")
        )

    async def restore(self, uaid: str, connected_at: int) -> bool:
        """Say again that the session of that generation is here; False if there is a newer one."""
        here = {"node": self.node, "address": self.address}
        return await self._change(uaid, connected_at, lambda now: msgspec.structs.replace(now, **here))

    async def move(self, uaid: str, connected_at: int, month: str) -> bool:
        """Have messages stored in another month from now on; False if there is a newer session."""

        def moved(now: RouterRecord) -> RouterRecord:
            return msgspec.structs.replace(now, month=month, previous=now.month)

        return await self._change(uaid, connected_at, moved)

    async def drop(self, uaid: str) -> None:
        """Forget the user agent."""
        await self._registry.delete(PREFIX + uaid)
        self.written.pop(uaid, None)
        self.changed(uaid)

    async def _change(self, uaid: str, connected_at: int, change: Callable[[RouterRecord], RouterRecord]) -> bool:
        """Change what the record says now, not what it said when somebody decided, as long as it is that session's."""
        while True:
            found = await self.find(uaid)
            if found is None or found.record.connected_at != connected_at:
                return False
            changed = change(found.record)
            if changed == found.record or await self._swap(uaid, found, changed):
                return True

    async def _swap(self, uaid: str, found: FoundRecord, record: RouterRecord) -> bool:
        try:
            stored = await self._registry.put(PREFIX + uaid, msgspec.json.encode(record), expect=found.version)
        except VersionMismatch:
            return False
        if record.node == self.node:
            self.written[uaid] = max(stored.version, self.written.get(uaid, 0))
        self.changed(uaid)
        return True


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
        found = await self._router.find(uaid)
        if found is None:
            return None
        known = KnownAgent(found.record, await self._mailbox.channels(uaid, found.record.month))
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
        found = await self._router.find(uaid)
        return None if found is None else found.record
