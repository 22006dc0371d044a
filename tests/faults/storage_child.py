"""A program that stores and says so: fault tests run it in a process of its own, and kill it.

Every line on standard output is an acknowledgement, as JSON, written after the engine's answer:

    {"entries": [[id, stream, index, end, body], …]}        a batch was appended
    {"record": [key, value, version]}                       a registry record was put
    {"items": [recipient, [[number, message id], …]]}       a mailbox took items

"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from penstock.engines.sqlite.engine import SqliteEngine, SqliteOptions, open_sqlite
from penstock.engines.sqlite.group_commit import WriteGroup
from penstock.engines.sqlite.writer import Limits, SqliteWriter, WriterJob
from penstock.values import Batch, Draft, Entry, NewItem

MONTH = "2026_11"


class HastyWriter(SqliteWriter):
    """A sabotage: acknowledges a group at once, and stores it when the next one comes."""

    _late: WriteGroup | None = None

    def _store(self, jobs: list[WriterJob]) -> None:
        if self._late:
            self._commit(self._late)
            self._settle(self._late)
        group = self._new_group()
        self._run_jobs(jobs, group)
        self._late = group
        self._acknowledge(jobs, group.entries)


class Killer:
    """Ends the process, as if the power failed, when a named point is reached for the n-th time."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times

    def at(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def small_options(sabotage: str = "none") -> SqliteOptions:
    """Folds and checkpoints come often, so that a short run has many of them."""
    return SqliteOptions(
        # A fold goes on without jobs, and would make the hasty writer less hasty. Some folds have all six streams.
        limits=Limits(fold_entries=10**6 if sabotage == "hasty" else 20, fold_rows=7, fold_few=5),
        checkpoint_pages=12,
        known_streams=4,
        synchronous="OFF" if sabotage == "no fsync" else "FULL",
        writer=HastyWriter if sabotage == "hasty" else SqliteWriter,
    )


def acknowledge(what: dict[str, object]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


class Load:
    """Publishers that store different things until they are stopped."""

    def __init__(self, engine: SqliteEngine, seed: int) -> None:
        self._engine, self._random = engine, random.Random(seed)
        self._seen: dict[int, Entry] = {}
        engine.log.follow(self._remember)

    def _remember(self, entries: Sequence[Entry]) -> None:
        self._seen.update((entry.id, entry) for entry in entries)

    async def run(self, rounds: int, publishers: int) -> None:
        await asyncio.gather(*(self._publish(number, rounds) for number in range(publishers)))

    async def _publish(self, publisher: int, rounds: int) -> None:
        for number in range(rounds):
            await self._append(publisher, number)
            if number % 7 == 3:
                await self._put_record(publisher, number)
            if number % 7 == 5:
                await self._put_items(publisher, number)

    async def _append(self, publisher: int, number: int) -> None:
        streams = [f"/s/{self._random.randrange(6)}" for _ in range(self._random.choice([1, 1, 1, 3]))]
        size = self._random.choice([0, 10, 300, 6000])
        body = b"%d.%d " % (publisher, number) + b"x" * size
        answer = await self._engine.log.append(Batch(tuple(Draft(stream, body) for stream in streams)))
        places = range(answer.first.id, answer.last.id + 1)
        stored = [entry for id in places if (entry := self._seen.pop(id)).index is not None]
        assert len(stored) == answer.count == len(streams)
        acknowledge({"entries": [[e.id, e.stream, e.index, e.end, e.body.decode()] for e in stored]})

    async def _put_record(self, publisher: int, number: int) -> None:
        record = await self._engine.registry.put(f"k/{publisher}", b"%d" % number)
        acknowledge({"record": [record.key, number, record.version]})

    async def _put_items(self, publisher: int, number: int) -> None:
        new = [NewItem(f"{publisher}.{number}.{n}", body=b"x" * 200) for n in range(2)]
        items = await self._engine.mailbox.put(f"r{publisher}", MONTH, new)
        acknowledge({"items": [f"r{publisher}", [[item.number, item.message_id] for item in items]]})


async def run(options: argparse.Namespace) -> None:
    killer = Killer(options.point, options.times) if options.point else None
    engine = open_sqlite(options.directory, node="child", faults=killer, options=small_options(options.sabotage))
    async with engine:
        await engine.mailbox.make_month(MONTH)
        await Load(engine, options.seed).run(options.rounds, options.publishers)
        if options.sabotage == "hasty":
            os._exit(0)  # its last group would be stored by a clean end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--publishers", type=int, default=3)
    parser.add_argument("--sabotage", choices=["none", "no fsync", "hasty"], default="none")
    parser.add_argument("--point", default="")
    parser.add_argument("--times", type=int, default=1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
