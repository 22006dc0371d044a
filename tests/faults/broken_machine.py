"""A machine of several workers that is broken on purpose: for the tests that must notice it.

With arguments it is the command line; without, one of the processes that that one has started.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from penstock.cli.machine import Child
from penstock.core.promise import Promise
from penstock.engines.local.log import WorkerLog
from penstock.engines.sqlite.log import SqliteLog
from penstock.node.children import main
from penstock.values import Appended, Batch, Place


def trusting(self: WorkerLog, pattern: str) -> int:
    """A worker that takes a wish for fulfilled as soon as it was made."""
    return 0


def hasty(self: SqliteLog, batches: Sequence[Batch]) -> Promise[list[Appended | Exception]]:
    """A log that answers its workers, and stores a little later."""
    asyncio.get_running_loop().call_later(0.3, _append_many, self, batches)
    promise: Promise[list[Appended | Exception]] = Promise()
    places = [Place(1, batch.drafts[0].stream, 0, 0, 0) for batch in batches]
    promise.value = [Appended(1, place, place) for place in places]
    promise.settle()
    return promise


_append_many = SqliteLog.append_many

if __name__ == "__main__":
    if len(sys.argv) > 1:
        from penstock.cli.app import run

        Child.module = "tests.faults.broken_machine"
        sys.exit(run(sys.argv[1:]))
    if os.environ["SABOTAGE"] == "trusting":
        WorkerLog.since = trusting  # type: ignore[method-assign]
    else:
        SqliteLog.append_many = hasty  # type: ignore[method-assign]
    sys.exit(main())
