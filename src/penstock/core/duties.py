"""Duties: work that one node of a cluster does at a time. A pusher, a shard of bindings, the announcements.

    duties/<thing>     the member that does it (`core/ownership.py`, rule `FREE`)

Every node computes by itself which member should have a duty (`liveness.chosen`). That member takes the duty when it is
free: nobody holds it, or its holder is dead. When another member should have it, the holder releases it first. So for
a moment nobody does the work, but never two nodes. A holder asks `mine` before each step.
"""

from __future__ import annotations

from typing import Final

from penstock.core.liveness import Membership, chosen
from penstock.core.ownership import Ownership, RecordForm
from penstock.core.registry import Registry

PREFIX: Final = "duties/"
LOOK_SECONDS: Final = 2.0


class _MemberName(RecordForm[str]):
    """The record is the member's name and nothing else."""

    def __init__(self) -> None:
        super().__init__(str, "")

    def decode(self, value: bytes) -> str:
        return value.decode()

    def encode(self, payload: str) -> bytes:
        return payload.encode()

    def owner(self, payload: str) -> str:
        return payload

    def owned(self, payload: str, member: str) -> str:
        return member


class Duties:
    """What this node has taken on. A server that is alone does everything, and writes nothing down."""

    def __init__(self, registry: Registry, members: Membership) -> None:
        self._members = members
        self._owned = Ownership(registry, members, PREFIX, _MemberName(), writes_alone=False)
        self.release, self.release_all = self._owned.release, self._owned.release_all

    def should(self, thing: str) -> bool:
        """Whether this node should have this duty; it may not have taken it yet."""
        return self._members.alone or chosen(self._members.living(), thing) == self._members.me

    def mine(self, thing: str) -> bool:
        """Whether this node may do it now."""
        return self._members.alone or self._owned.holds(thing)

    async def take(self, thing: str) -> bool:
        """Take it on if it is free and this node is the one; whether it may be done now."""
        if not self.mine(thing) and self.should(thing):
            await self._owned.claim(thing, lambda holder: "")
        return self.mine(thing)

    async def holder(self, thing: str) -> str | None:
        """The living member that does it."""
        if self._members.alone:
            return self._members.me
        member = (await self._owned.look(thing)).payload
        return member if member in self._members.living() else None
