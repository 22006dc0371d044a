"""A machine of several workers that is broken on purpose: for the tests that must notice it.

With arguments it is the command line; without, one of the processes that that one has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.cli import worker_supervisor
from penstock.cli.worker_supervisor import SPARE_SECONDS, Child, WorkerSupervisor
from penstock.core.promise import Promise
from penstock.engines.local import LogServer
from penstock.engines.local.worker_log import WorkerLog
from penstock.engines.sqlite.log import SqliteLog
from penstock.node.worker_main import main
from penstock.values import Appended, Batch, Entry, Page, Place, PlainEvent

WATCHED = "/killed/"  # the streams that the test reads


def trusting(self: WorkerLog, pattern: str) -> int:
    """A worker that believes to be sent what it wants as soon as it has asked.

    It makes the want when the stream has an entry that came too early for it, so that each reader misses one.
    """
    if pattern.startswith(WATCHED) and pattern not in self._since:
        self._since[pattern] = 0
        _tasks.append(asyncio.ensure_future(_wish_late(self, pattern, self.followed)))
    return 0


async def _wish_late(log: WorkerLog, pattern: str, after: int) -> None:
    while not (page := await log.read_after((pattern,), after)).entries:
        after = page.upto
        await asyncio.sleep(0.01)
    log._asked[log._link.want(pattern)] = pattern


def only_others(change: Callable[[WorkerLog, str], None]) -> Callable[[WorkerLog, str], None]:
    """As *change*, but patterns of watched streams are left to `trusting`."""
    return lambda log, pattern: None if pattern.startswith(WATCHED) else change(log, pattern)


def repeating(self: WorkerLog, patterns: Sequence[str], after: int, **options: Any) -> Awaitable[Page]:
    """A worker that reads on with the entry that its reader has, and not behind it."""
    watched = any(pattern.startswith(WATCHED) for pattern in patterns)
    return _read_after(self, patterns, max(0, after - 1) if watched else after, **options)


def hasty(self: SqliteLog, appends: Sequence[PlainEvent | Batch]) -> Promise[list[Entry | Appended | Exception]]:
    """A log that answers its workers, and stores when the next batch of the same stream comes."""
    streams = [append[0] if isinstance(append, tuple) else append.drafts[0].stream for append in appends]
    for stream, append in zip(streams, appends, strict=True):
        if (before := _held.pop(stream, None)) is not None:
            _append_many(self, [before])
        _held[stream] = append
    promise: Promise[list[Entry | Appended | Exception]] = Promise()
    places = [Place(1, stream, 0, 0, 0) for stream in streams]
    promise.value = [Appended(1, place, place) for place in places]
    promise.settle()
    return promise


async def unending(self: LogServer, *error: object) -> None:
    """A log process that does not come to its end."""
    await asyncio.Event().wait()


async def cutting(self: WorkerSupervisor) -> None:
    """A first process that kills its workers when it is to end."""
    for worker in self._workers.values():
        worker.send(signal.SIGKILL)


_tasks: list[asyncio.Future[None]] = []
_held: dict[str, PlainEvent | Batch] = {}
_append_many = SqliteLog.append_many
_read_after = WorkerLog.read_after

if __name__ == "__main__":
    if len(sys.argv) > 1:
        from penstock.cli.app import run

        if os.environ["SABOTAGE"] == "cutting":
            WorkerSupervisor._drain = cutting  # type: ignore[method-assign]
        worker_supervisor.SPARE_SECONDS = 3.0 if os.environ["SABOTAGE"] == "unending" else SPARE_SECONDS  # type: ignore[misc]
        Child.module = "tests.faults.broken_machine"
        sys.exit(run(sys.argv[1:]))
    if os.environ["SABOTAGE"] == "trusting":
        WorkerLog.since = trusting  # type: ignore[method-assign]
        WorkerLog.want = only_others(WorkerLog.want)  # type: ignore[method-assign]
        WorkerLog.unwant = only_others(WorkerLog.unwant)  # type: ignore[method-assign]
    elif os.environ["SABOTAGE"] == "repeating":
        WorkerLog.read_after = repeating  # type: ignore[method-assign]
    elif os.environ["SABOTAGE"] == "unending":
        LogServer.__aexit__ = unending  # type: ignore[method-assign]
    elif os.environ["SABOTAGE"] == "hasty":
        SqliteLog.append_many = hasty  # type: ignore[method-assign]
    sys.exit(main())
