"""A worker that leaves its log process, says so, and goes on until its input ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from penstock.engines.local import open_worker_engine
from penstock.engines.local.worker_calls import connect
from penstock.settings import LogSettings


async def main(path: Path, how: str) -> None:
    if how == "never said who it is":
        (await connect(str(path))).abort()
    else:
        async with open_worker_engine(path, node="leaving", settings=LogSettings()) as worker:
            if how == "goes without a word":
                worker._link.abort()
                await asyncio.sleep(0)  # it is closed in the next turn of the loop
    print("gone", flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
