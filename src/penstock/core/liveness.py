"""Which nodes of a cluster are alive, without trusting anybody's clock.

Each node keeps one registry record and changes it every second and a half. The others watch its version on
their own clocks: one that has not changed for six seconds belongs to a dead node, and whoever notices removes
it under compare-and-set. From then on the dead one's claims (wires, pushers) are free.

A node that cannot change its record for four seconds no longer `holds`: it stops what only one node may do,
two seconds before anybody can take it over. One that was stopped in the middle finds its record gone, and
joins under a new name: what it had claimed under the old one is lost to it.

    members/n1    n1:7f3a…        ◀── renewed by n1
    members/n2    n2:04c1…            removed by n1 or n3 six seconds after n2's last change
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, Self

from penstock.core.background import Background, Loop
from penstock.core.bus import Bus
from penstock.core.registry import NEW, Registry, delete_if, put_if
from penstock.errors import PenstockError

log = logging.getLogger("penstock.members")

RENEW_SECONDS: Final = 1.5
HOLD_SECONDS: Final = 4.0
DEAD_SECONDS: Final = 6.0
WATCH_SECONDS: Final = 1.0
HINT: Final = "members"
_PREFIX = "members/"


class Membership(Protocol):
    """What doors ask. A member is a node during one of its lives: `node:random`."""

    alone: bool  # there are no other nodes, and never will be
    me: str
    on_change: list[Callable[[], None]]

    @property
    def holds(self) -> bool:
        """Whether this node may do, now, what it has claimed."""
        ...

    def living(self) -> tuple[str, ...]:
        """All members that are alive, this one among them, in order of their names."""
        ...

    async def is_dead(self, member: str) -> bool:
        """Whether that one is certainly gone. One that joined a moment ago lives, though `living` may not know it."""
        ...


class SingleMember:
    """The membership of a server that is alone."""

    alone = True
    me = "local:0"
    holds = True

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []

    def living(self) -> tuple[str, ...]:
        return (self.me,)

    async def is_dead(self, member: str) -> bool:
        return member != self.me


def node_of(member: str) -> str:
    """The node's name on the bus."""
    return member.rpartition(":")[0]


def chosen(members: Iterable[str], thing: str) -> str:
    """The member that should do *thing*. All nodes compute the same one; a new or lost member moves few things."""
    return max(members, key=lambda member: hashlib.blake2b(f"{member} {thing}".encode(), digest_size=8).digest())


class Members:
    """This node's place in its cluster. Lives in `async with`; leaving tells the others."""

    alone = False

    def __init__(
        self,
        registry: Registry,
        bus: Bus,
        time: Callable[[], float] | None = None,
        background: Background | None = None,
    ) -> None:
        """*time* is the loop's, in seconds."""
        self._registry, self._bus, self._background = registry, bus, background or Background()
        self._time = time or asyncio.get_running_loop().time
        self._key = _PREFIX + bus.node
        self._version = NEW
        self._renewed = float("-inf")  # when the last change that succeeded began
        self._seen: dict[str, tuple[int, float, str]] = {}  # key → version, since when, member
        self._loops: list[Loop] = []
        self._look = asyncio.Event()
        self._fence: asyncio.TimerHandle | None = None
        self.on_change: list[Callable[[], None]] = []
        self.me = self._new_name()
        self._told: tuple[str, ...] = (self.me,)
        bus.listen(HINT, lambda topic, message: self._look.set())

    def _new_name(self) -> str:
        return f"{self._bus.node}:{secrets.token_hex(4)}"

    async def __aenter__(self) -> Self:
        await self.renew()
        await self.watch()
        await self._bus.hint(HINT, b"")
        self._loops = [
            self._background.every(RENEW_SECONDS, "members.renew", self._renew_in_time),
            self._background.every(WATCH_SECONDS, "members.watch", self.watch, wake=self._look),
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for loop in self._loops:
            await loop.stop()
        self._renewed = float("-inf")
        if self._fence is not None:
            self._fence.cancel()
        with suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(2):
                await self._registry.delete(self._key, expect=self._version)
                await self._bus.hint(HINT, b"")

    # ── what doors ask ─────────────────────────────────────────────────────────────────────────

    @property
    def holds(self) -> bool:
        return self._time() < self._renewed + HOLD_SECONDS

    def living(self) -> tuple[str, ...]:
        others = [member for key, (_, _, member) in self._seen.items() if key != self._key]
        return tuple(sorted({self.me, *others}))

    async def is_dead(self, member: str) -> bool:
        if member in self.living():
            return False
        record = await self._registry.get(_PREFIX + (node_of(member) or member))
        return record is None or record.value != member.encode()

    # ── this node's record ─────────────────────────────────────────────────────────────────────

    async def renew(self) -> None:
        """Show that this node lives. If its record was taken away, it begins a new life."""
        begun = self._time()
        record = await put_if(self._registry, self._key, self.me.encode(), self._version)
        if record is None:
            found = await self._registry.get(self._key)
            if found is not None and found.value == self.me.encode():
                self._version = found.version  # an answer was lost
                return
            if self._version != NEW:
                log.warning("members.lost", extra={"member": self.me})
                self.me, self._renewed = self._new_name(), float("-inf")
            self._version = found.version if found else NEW  # of a former life of this node
            record = await self._registry.put(self._key, self.me.encode(), expect=self._version)
        self._version, self._renewed = record.version, begun
        self._set_fence()

    def _set_fence(self) -> None:
        """Have `on_change` called when `holds` turns False; each renewal puts that moment off."""
        if self._fence is not None:
            self._fence.cancel()
        left = self._renewed + HOLD_SECONDS - self._time()
        self._fence = asyncio.get_running_loop().call_later(left, self._tell)

    async def _renew_in_time(self) -> None:
        held = self.holds
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await self.renew()
        finally:
            if held != self.holds:
                self._tell()

    # ── the others' ────────────────────────────────────────────────────────────────────────────

    async def watch(self) -> None:
        """Look at all records once; remove those that have not changed for too long."""
        records = await self._registry.list(_PREFIX)
        now, seen = self._time(), self._seen
        self._seen = {}
        for record in records:
            known = seen.get(record.key)
            since = known[1] if known and known[0] == record.version else now
            if (
                record.key != self._key
                and now - since > DEAD_SECONDS
                and await delete_if(self._registry, record.key, record.version)
            ):
                log.warning("members.dead", extra={"member": record.value.decode()})
            else:
                self._seen[record.key] = (record.version, since, record.value.decode())
        if self.living() != self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = self.living()
        for change in self.on_change:
            change()
