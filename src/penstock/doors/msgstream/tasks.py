"""The work of sessions that waits for storage. It runs in tasks that belong to the door and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.core.ledger import Ledger

T = TypeVar("T")


class Tasks:
    """Runs coroutines until they end, or until it is closed."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin *work*. Whoever starts it sees to its errors."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class LedgerFlushes:
    """Makes ledger records durable for many sessions at once.

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
                self._next = self._tasks.start(self._flush(self._running))
            await asyncio.shield(self._next)

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        # Whoever records something from here on needs another.
        self._running, self._next = self._next, None
        await self._ledger.flush()
