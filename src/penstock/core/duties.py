"""Things of which each is done by exactly one node: a pusher, the announcements.

    duties/<thing>     the member that does it, under compare-and-set

Every node finds by itself who should do a thing (`members.chosen`). That one takes the duty when its record is
free: absent, or of a member that is dead. A holder that is no longer the one who should lets go of it first.
So a thing is done by nobody for a moment, and never by two.

Before each step a holder asks `mine`: a node that could not show its life for four seconds does nothing any
more, and the others take it for dead two seconds later at the earliest.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.core.members import Membership, chosen
from penstock.core.registry import NEW, Registry
from penstock.errors import PenstockError, VersionMismatch

PREFIX: Final = "duties/"
RELEASE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 2.0


class Duties:
    """What this node has taken on. A server that is alone does everything, and writes nothing down."""

    def __init__(self, registry: Registry, members: Membership) -> None:
        self._registry, self._members = registry, members
        self._held: dict[str, tuple[str, int]] = {}  # thing → as whom, version

    def should(self, thing: str) -> bool:
        """Whether this node is the one to do it."""
        return self._members.alone or chosen(self._members.living(), thing) == self._members.me

    def mine(self, thing: str) -> bool:
        """Whether this node may do it now."""
        if self._members.alone:
            return True
        held = self._held.get(thing)
        return held is not None and held[0] == self._members.me and self._members.holds

    async def take(self, thing: str) -> bool:
        """Take it on if it is free and this node is the one; whether it may be done now."""
        if self.mine(thing):
            return True
        if not self._members.holds or not self.should(thing):
            return False
        record = await self._registry.get(PREFIX + thing)
        holder = record.value.decode() if record else None
        if holder != self._members.me and holder in self._members.living():
            return False
        expect = record.version if record else NEW
        try:
            taken = await self._registry.put(PREFIX + thing, self._members.me.encode(), expect=expect)
        except VersionMismatch:
            return False
        self._held[thing] = (self._members.me, taken.version)
        return self.mine(thing)

    async def release(self, thing: str) -> None:
        """Let go of it, after it was stopped."""
        held = self._held.pop(thing, None)
        if held is not None:
            with suppress(VersionMismatch):
                await self._registry.delete(PREFIX + thing, expect=held[1])

    async def release_all(self) -> None:
        """Let go of everything; what cannot be released in a moment is free when this node is gone."""
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                for thing in list(self._held):
                    await self.release(thing)

    async def holder(self, thing: str) -> str | None:
        """The living member that does it."""
        if self._members.alone:
            return self._members.me
        record = await self._registry.get(PREFIX + thing)
        member = record.value.decode() if record else None
        return member if member in self._members.living() else None
