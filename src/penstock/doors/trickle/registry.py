"""Who owns a channel: one record per channel, changed by compare-and-set.

    trickle/channels/<name>   epoch, owner and its address, how it is kept, whether it is recorded and closed

A channel belongs to its owner as long as that node is a member of the cluster (`core/members.py`, which keeps one
lease per node). After that the next node that is asked for it takes it over, if it is recorded; any other went
with its node.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.core.members import Membership
from penstock.core.registry import NEW, Registry
from penstock.errors import VersionMismatch
from penstock.values import Record
from penstock.wire.trickle import level_of
from penstock.wire.trickle_channel import Keep

_CHANNELS = "trickle/channels/"
KEY = "trickle/key"


class ChannelRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all nodes know of a channel."""

    name: str
    epoch: int
    owner: str  # a member of the cluster
    segments: int
    bytes: int
    seconds: float
    mime: str = ""
    record: bool = False
    closed: bool = False
    address: str = ""  # of the owner's internal listener

    @property
    def keep(self) -> Keep:
        return Keep(self.segments, self.bytes, self.seconds)


class State(Enum):
    """What is to be done about a channel that is not open on this node."""

    UNKNOWN = "there is none"
    CLOSED = "it is closed, and its segments are in the log"
    OURS = "its owner is gone, or was this node before a restart: it can be opened here"
    ELSEWHERE = "another node has it"


class Found(msgspec.Struct, frozen=True):
    """A look at the registry."""

    state: State
    record: ChannelRecord | None = None
    version: int = NEW


class Owners:
    """Reads and changes the records."""

    def __init__(self, registry: Registry, members: Membership) -> None:
        self._registry, self._members = registry, members
        self.address = ""  # of our internal listener, once it listens

    async def look(self, name: str) -> Found:
        """Find out whose the channel is."""
        stored = await self._registry.get(_CHANNELS + level_of(name))
        return Found(State.UNKNOWN) if stored is None else self._judge(stored)

    def _judge(self, stored: Record) -> Found:
        record = msgspec.json.decode(stored.value, type=ChannelRecord)
        if record.closed:
            return Found(State.CLOSED if record.record else State.UNKNOWN, record, stored.version)
        if record.owner != self._members.me and record.owner in self._members.living():
            return Found(State.ELSEWHERE, record, stored.version)
        # What was not recorded went with its owner; only its epoch is left.
        return Found(State.OURS if record.record else State.UNKNOWN, record, stored.version)

    async def claim(self, record: ChannelRecord, version: int) -> bool:
        """Write the record with this node as owner; False if somebody else was faster."""
        mine = msgspec.structs.replace(record, owner=self._members.me, address=self.address)
        try:
            await self._registry.put(_CHANNELS + level_of(record.name), msgspec.json.encode(mine), expect=version)
        except VersionMismatch:
            return False
        return True

    async def release(self, name: str, epoch: int) -> None:
        """This node has closed the channel: keep the record if it ever was recorded, forget any other.

        A record that was kept counts the epochs on, so that no stream is ever written to by two of them.
        """
        key = _CHANNELS + level_of(name)
        stored = await self._registry.get(key)
        if stored is None:
            return
        record = msgspec.json.decode(stored.value, type=ChannelRecord)
        if record.owner != self._members.me or record.epoch != epoch:
            return
        try:
            if record.record or record.epoch > 1:
                closed = msgspec.structs.replace(record, closed=True)
                await self._registry.put(key, msgspec.json.encode(closed), expect=stored.version)
            else:
                await self._registry.delete(key, expect=stored.version)
        except VersionMismatch:
            return  # it has another owner now, whose business this is

    async def left_open(self) -> list[ChannelRecord]:
        """Recorded channels that were open when a server that is alone stopped; what is left of others is removed."""
        found: list[ChannelRecord] = []
        after = ""
        while page := await self._registry.list(_CHANNELS, after=after):
            after = page[-1].key
            for stored in page:
                record = msgspec.json.decode(stored.value, type=ChannelRecord)
                if record.record and not record.closed:
                    found.append(record)
                elif not record.record and record.epoch == 1:
                    await self._registry.delete(stored.key)
        return found
