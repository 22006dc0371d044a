"""A machine of several workers that is broken on purpose: for the tests that must notice it.

With arguments it is the command line; without, one of the processes that that one has started.
"""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.cli.machine import Child
from penstock.core.promise import Promise
from penstock.engines.local.log import WorkerLog
from penstock.engines.sqlite.log import SqliteLog
from penstock.node.children import main
from penstock.values import Appended, Batch, Place


def trusting(self: WorkerLog, pattern: str) -> int:
    """A worker that takes a wish for fulfilled as soon as it was made."""
    return 0


def hasty(self: SqliteLog, batch: Batch) -> Promise[Appended]:
    """A log that answers, and stores a little later."""
    asyncio.get_running_loop().call_later(0.3, _append, self, batch)
    promise: Promise[Appended] = Promise()
    place = Place(1, batch.drafts[0].stream if batch.drafts else batch.create, 0, 0, 0)
    promise.value = Appended(1, place, place)
    promise.settle()
    return promise


_append = SqliteLog.append

if __name__ == "__main__":
    if len(sys.argv) > 1:
        from penstock.cli.app import run

        Child.module = "tests.faults.broken_machine"
        sys.exit(run(sys.argv[1:]))
    if os.environ["SABOTAGE"] == "trusting":
        WorkerLog.since = trusting  # type: ignore[method-assign]
    else:
        SqliteLog.append = hasty  # type: ignore[method-assign]
    sys.exit(main())
