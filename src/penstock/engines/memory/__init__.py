"""The engine in memory: the readable model of the contracts, and what users' tests run on.

It keeps plain lists and dictionaries and looks through them from end to end. What it answers is what
every engine must answer; `tests/contract/` and the property tests compare them with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from penstock.core.bus import LocalBus
from penstock.core.change_watch import Changes, MailboxChange, RecordChange
from penstock.core.clock import Clock, WallClock
from penstock.core.export import LogExport
from penstock.engines.memory.log import MemoryLog
from penstock.engines.memory.mailbox import MemoryMailbox
from penstock.engines.memory.registry import MemoryRegistry
from penstock.errors import InputInvalid
from penstock.settings import DEFAULTS

__all__ = ["MemoryChanges", "MemoryEngine", "MemoryLog", "MemoryMailbox", "MemoryRegistry"]


class MemoryEngine:
    """Log, mailbox, registry and bus that live as long as the object."""

    def __init__(
        self, *, node: str = "memory", server: str = DEFAULTS.eventhorizon.server, clock: Clock | None = None
    ) -> None:
        clock = clock or WallClock()
        self.log = MemoryLog(clock, server)
        self.mailbox = MemoryMailbox(clock)
        self.registry = MemoryRegistry(clock)
        self.bus = LocalBus(node)
        self.export = LogExport(self.log)
        self.changes: Changes | None = None  # alone; nodes of a test that share it have one each
        self.queued = 0
        self.trouble = ""

    async def backup(self, directory: Path) -> object:
        """There is nothing to copy: it lives as long as the process."""
        raise InputInvalid("backup", "the memory engine keeps nothing that could be copied")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


class MemoryChanges:
    """`core.change_watch.Changes` of one of several nodes that share an engine in memory."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._records: dict[str, int] = {}
        self._heads: dict[tuple[str, str], int] = {}
        engine.registry.watchers.append(self._records.__setitem__)
        engine.mailbox.watchers.append(self._heads.__setitem__)

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        records = [RecordChange(*pair) for pair in self._records.items() if pair[0].startswith(tuple(prefixes))]
        heads = [MailboxChange(*name, number) for name, number in self._heads.items()]
        self._records.clear()
        self._heads.clear()
        return records, heads
