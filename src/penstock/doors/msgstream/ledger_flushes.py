"""Makes ledger records durable for many sessions at once."""

from __future__ import annotations

import asyncio

from penstock.core.background import Tasks
from penstock.core.ledger import Ledger


class LedgerFlushes:
    """All sessions flush through it.

    A confirmation waits until the ledger has it. Each by itself would be a batch and a commit of its own, one after
    the other; so while one flush is under way, all who come share the next.
    """

    def __init__(self, ledger: Ledger, tasks: Tasks) -> None:
        self._ledger, self._tasks = ledger, tasks
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def flush(self) -> None:
        """Return when all that was recorded before the call is durable."""
        if self._ledger.enabled:
            if self._next is None:
                self._next = self._tasks.start(self._flush(self._running), awaited=True)
            await asyncio.shield(self._next)

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        # Whoever records something from here on needs another.
        self._running, self._next = self._next, None
        await self._ledger.flush()
