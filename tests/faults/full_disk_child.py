"""Fills a small disk of its own, frees it, and prints what happened, as one JSON object.

Runs in a mount namespace of its own (`unshare`), so that the disk is gone when the process is.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.engines.sqlite.engine import SqliteOptions, open_sqlite
from penstock.engines.sqlite.writer import SqliteWriter, WriterJob
from penstock.values import Batch, Draft
from tests.faults.promises import read_everything

DISK_BYTES = 8 * 1024 * 1024
FILLER_BYTES = 5 * 1024 * 1024
BODY = b"x" * 20_000
APPENDS = 4


class ForgivingWriter(SqliteWriter):
    """A sabotage: says that all is well when the commit has failed."""

    def _fail(self, jobs: Sequence[WriterJob], error: Exception) -> None:
        super()._fail([], error)
        self._acknowledge(jobs, ())


async def run(disk: Path, writer: type[SqliteWriter]) -> dict[str, object]:
    filler = disk / "filler"
    filler.write_bytes(b"\0" * FILLER_BYTES)
    (disk / "data").mkdir()
    async with open_sqlite(disk / "data", node="n", options=SqliteOptions(writer=writer)) as engine:

        async def outcome() -> list[str]:
            """What became of four appends and a record: "stored", or the code of an error."""
            answers = [engine.log.append(Batch((Draft("/s", BODY),))) for _ in range(APPENDS)]
            answers.append(asyncio.ensure_future(engine.registry.put("k", BODY)))
            found = await asyncio.gather(*answers, return_exceptions=True)
            return [getattr(answer, "code", "stored") for answer in found]

        outcomes = [await outcome() for _ in range(80)]
        while_full = [entry for entry in await read_everything(engine) if entry.index is not None]
        filler.unlink()
        afterwards = [await outcome() for _ in range(3)]
        followed = engine.log.followed
    async with open_sqlite(disk / "data", node="n") as engine:
        indexes = [entry.index for entry in await read_everything(engine) if entry.index is not None]
        reopened = engine.log.followed
    return {
        "outcomes": outcomes, "readable while full": len(while_full), "afterwards": afterwards,
        "followed": followed, "reopened": reopened, "indexes": indexes,
    }  # fmt: skip


def main() -> None:
    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True)
    writer = ForgivingWriter if "forgiving" in sys.argv else SqliteWriter
    print(json.dumps(asyncio.run(run(disk, writer))))  # noqa: T201


if __name__ == "__main__":
    main()
