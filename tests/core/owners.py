"""Nodes that own things, moved by hand: their clocks, their looks and their messages are the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from penstock.core.change_watch import ChangePoller, Changes
from penstock.core.liveness import DEAD_SECONDS, RENEW_SECONDS, Members
from penstock.core.ownership import OwnedRecord, Ownership, RecordForm, Rule
from penstock.core.registry import Registry
from penstock.engines.memory import MemoryChanges
from tests.faulty_bus import Blind, Faults, FaultyBus
from tests.nodes import Network

PREFIX = "things/"


class Thing(msgspec.Struct, frozen=True):
    """What a door might keep."""

    member: str
    number: int


FORM = RecordForm(Thing, "member")


class Node:
    """One node: its membership, and what it owns and lost."""

    def __init__(
        self, name: str, registry: Registry, bus: FaultyBus, changes: Changes, rule: Rule, kind: type[Ownership[Thing]]
    ) -> None:
        self.name, self.registry, self.now = name, registry, 1000.0 * len(name)
        self.change_poller = ChangePoller(changes)
        self.members = Members(registry, bus, lambda: self.now)
        self.lost: list[tuple[str, int, str | None]] = []  # key, our number, whose it is now
        self.swept: list[str] = []
        self.owned = kind(
            registry, self.members, PREFIX, FORM, rule=rule, bus=bus, change_poller=self.change_poller,
            lost=self._lost, swept=lambda key, thing: self.swept.append(key),
        )  # fmt: skip

    def _lost(self, key: str, mine: Thing, now: Thing | None) -> None:
        self.lost.append((key, mine.number, now.member.partition(":")[0] if now else None))

    async def claim(self, key: str, number: int = 0, **more: Any) -> bool:
        return await self.owned.claim(key, lambda before: Thing("", number), **more) is not None

    async def look(self) -> None:
        """What the poller does twice a second."""
        await self.change_poller.look()


async def owner(node: Node, key: str) -> str | None:
    """The name of the node that the record names."""
    found: OwnedRecord[Thing] = await node.owned.look(key)
    return found.payload.member.partition(":")[0] if found.payload else None


async def dies(node: Node, others: Sequence[Node]) -> None:
    """The node is stopped for so long that the others take it for dead; it does not know that yet."""
    for _ in range(int(DEAD_SECONDS / RENEW_SECONDS) + 2):
        for one in (node, *others):
            one.now += RENEW_SECONDS
        for one in others:
            await one.members.renew()
        for one in others:
            await one.members.watch()


async def comes_back(node: Node) -> None:
    """It finds out, under a new name."""
    await node.members.renew()
    for change in node.members.on_change:
        change()
    await node.members.watch()


def seeing(engine: Any) -> Changes:
    """What the engine shows to nodes that share it; one that nodes do not share shows nothing."""
    if engine.changes is not None:
        found: Changes = engine.changes
        return found
    return MemoryChanges(engine) if hasattr(engine.registry, "watchers") else Blind()


@asynccontextmanager
async def nodes(
    engine: Any,
    *names: str,
    rule: Rule = Rule.NEWEST,
    faults: Faults | None = None,
    see: Callable[[Any], Changes] = seeing,
    kind: type[Ownership[Thing]] = Ownership,
) -> AsyncIterator[list[Node]]:
    """Some nodes that share an engine and know each other."""
    network = Network()
    async with AsyncExitStack() as stack:
        made = [
            Node(name, engine.registry, FaultyBus(network.bus(name), faults or Faults()), see(engine), rule, kind)
            for name in names
        ]
        for node in made:
            await node.members.renew()
        for node in made:
            await node.members.watch()
            await stack.enter_async_context(node.owned)
        yield made
