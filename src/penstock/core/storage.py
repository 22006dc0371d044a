"""A storage engine: all its contracts, and how it does."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.core.export import Export
from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.registry import Registry


class Storage(Protocol):
    """The part of an engine that is the same whoever asks: a node, or the workers of a machine."""

    @property
    def log(self) -> Log: ...
    @property
    def mailbox(self) -> Mailbox: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def export(self) -> Export: ...

    @property
    def trouble(self) -> str:
        """Why it should get no requests now; empty when all is well."""
        ...

    @property
    def queued(self) -> int:
        """Batches that wait to be stored."""
        ...

    async def backup(self, directory: Path) -> object:
        """Copy everything into an empty directory while running."""
        ...
