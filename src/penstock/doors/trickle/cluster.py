"""Which node has a channel, and what all nodes know of it: `core/ownership.py`, rule `FREE`.

    trickle/channels/<name>   epoch, owner and its address, how it is kept, whether it is recorded and closed

When the owner is dead the next node that is asked for the channel takes it over, if it is recorded; any other channel
went with its node. A closed one belongs to nobody. Its record stays if it ever was recorded, and counts the epochs on,
so that no stream is ever written to by two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.core.liveness import Membership
from penstock.core.ownership import OwnedRecord, Ownership, RecordForm
from penstock.core.registry import NEW, Registry
from penstock.errors import Busy
from penstock.wire.trickle import level_of
from penstock.wire.trickle_channel import Keep

PREFIX = "trickle/channels/"


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
    payer: str = ""  # whose share of each node's room it takes; empty: nobody's

    @property
    def keep(self) -> Keep:
        return Keep(self.segments, self.bytes, self.seconds)


class _ChannelForm(RecordForm[ChannelRecord]):
    def owner(self, payload: ChannelRecord) -> str:
        return "" if payload.closed else payload.owner


class ChannelState(Enum):
    """What is to be done about a channel that is not open on this node."""

    UNKNOWN = "there is none"
    CLOSED = "it is closed, and its segments are in the log"
    FREE = "its owner is gone, or was this node before a restart: it can be opened here"
    ELSEWHERE = "another node has it"


class KnownChannel(NamedTuple):
    """What the registry says of a channel."""

    state: ChannelState
    record: ChannelRecord | None = None
    version: int = NEW


def check_membership(members: Membership) -> None:
    """Raise `Busy` while this node cannot know whether the others take it for dead."""
    if not members.holds:
        raise Busy("certainty that this node is still one of the cluster", 0)


class ChannelOwners:
    """Finds, claims and releases channels for this node."""

    def __init__(self, registry: Registry, members: Membership, lost: Callable[[ChannelRecord], None]) -> None:
        """*lost* hears of each channel that this node had before the others took it for dead."""
        self._registry, self._members = registry, members
        form = _ChannelForm(ChannelRecord, "owner")
        self._owned = Ownership(registry, members, PREFIX, form, lost=lambda key, mine, now: lost(mine))
        self.address = ""  # of our internal listener, once it listens

    async def look(self, name: str) -> KnownChannel:
        """Find out whose the channel is."""
        record, version = (found := await self._owned.look(level_of(name))).payload, found.version
        if record is None:
            return KnownChannel(ChannelState.UNKNOWN)
        if record.closed:
            state = ChannelState.CLOSED
        elif record.owner != self._members.me and not await self._members.is_dead(record.owner):
            return KnownChannel(ChannelState.ELSEWHERE, record, version)
        else:
            state = ChannelState.FREE
        # What was not recorded went with its owner; only its epoch is left.
        return KnownChannel(state if record.record else ChannelState.UNKNOWN, record, version)

    async def claim(self, record: ChannelRecord, known: KnownChannel) -> bool:
        """Make this node the owner of the channel as *record* has it; False if it is not as it was *known* any more."""
        check_membership(self._members)
        mine = msgspec.structs.replace(record, address=self.address)
        seen = OwnedRecord(known.record, known.version)
        claimed = await self._owned.claim(
            level_of(record.name), lambda before: mine if before == known.record else None, seen=seen
        )
        return claimed is not None

    async def release(self, name: str, epoch: int) -> None:
        """This node has closed the channel."""
        record = self._owned.mine(level_of(name))
        if record is not None and record.epoch == epoch:
            stays = record.record or record.epoch > 1
            leave = msgspec.structs.replace(record, closed=True) if stays else None
            await self._owned.release(level_of(name), leave)

    async def left_open(self) -> list[ChannelRecord]:
        """Recorded channels that were open when a server that is alone stopped; what is left of others is removed."""
        found: list[ChannelRecord] = []
        async for key, stored in self._owned.each():
            record = stored.payload
            if record is not None and record.record and not record.closed:
                found.append(record)
            elif record is not None and not record.record and record.epoch == 1:
                await self._registry.delete(PREFIX + key)
        return found
