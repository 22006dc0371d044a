"""Commits of a table of the lake: what one costs when there were many, and what a day of `up` leaves in the store."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.rig.report import Figure, Report, say
from penstock.iceberg.files import WrittenFile, arrow_schema, write_file
from penstock.iceberg.store import FileStore, open_store
from penstock.iceberg.tables import Prepared, Table
from penstock.pipeline.jobs import compact
from penstock.wire.lake_files import LakeFile

BEGIN = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
"""The next day: a table's clock does not go back behind the moment at which it was made."""
TURN_SECONDS, COMPACT_SECONDS = 4, 1_800
"""As the loop of `up` has it (docs/pipeline.md)."""
WINDOW = 256
"""Commits of which the mean is taken: among so many, manifests are merged sixteen times, and once those merged."""
DAY_TURNS = 24 * 3600 // TURN_SECONDS
OVERWRITTEN = ("deliveries", "rollup_hourly", "activity")
"""Tables with one row for each key: a turn writes the files again that have some of its keys."""


def measure_commits(report: Report, folder: Path, commits: int) -> None:
    """CPU of a commit that adds one file, after *commits* and after ten; nothing is ever compacted."""
    store = open_store(folder / "commits")
    table, costs = Table.create(store, "events"), []
    written = _written(store, "events", 0)
    say(f"{commits + WINDOW:,} commits")
    for number in range(commits + WINDOW):
        # The file itself is not there: a commit looks at what a task gave back, never at the file.
        file = LakeFile(number, number + 1, f"{BEGIN:%Y-%m-%d}", "events", f"{number:x}")
        one = replace(written, location=store.location(file.path))
        before = time.process_time()
        table = _land(store, table.append([one], now_ms=_ms(number)))
        costs.append(1000 * (time.process_time() - before))
    few, many = costs[10 : 10 + WINDOW], costs[commits:]
    detail = {"median_ms": statistics.median(many), "worst_ms": max(many), "manifests": len(table.manifests)}
    after, cost, first = f"after {commits:,}", statistics.mean(many), statistics.mean(few)
    report.add(Figure(f"commit of a file, {after}", cost, "ms of CPU", None, "", 20, 12, detail=detail))
    report.add(
        Figure(f"commit of a file, {after} / 10", cost, "ms of CPU", first, "after 10", 1.5, 1.1, judged="ratio")
    )


def measure_day(report: Report, folder: Path, turns: int) -> None:
    """So many turns of `up`, one in four seconds, and a compaction every half hour: files and CPU at the end and early.

    A turn adds a file to `events`, and writes one anew in each of the tables that turns overwrite. A shorter day than a
    whole one is compacted as often. Of the first two hours the first half hour does not count: it takes ten minutes
    until there are as many snapshots as there will be.
    """
    store, every = open_store(folder / "day"), max(1, min(turns, DAY_TURNS) * COMPACT_SECONDS // (24 * 3600))
    table, files, costs = Table.create(store, "events"), [], []
    overwritten = [_Overwritten(store, name) for name in OVERWRITTEN]
    say(f"{turns:,} turns")
    for number in range(turns):
        before = time.process_time()
        table = _land(store, table.append([_written(store, "events", number)], now_ms=_ms(number)))
        for one in overwritten:
            one.turn(number)
        costs.append(1000 * (time.process_time() - before))
        if (number + 1) % every == 0:
            files.append(sum(1 for _ in store.list("")))
            table = _compact(store, table, number)
    cost, first = statistics.mean(costs[-4 * every :]), statistics.mean(costs[every : 4 * every])
    detail = {"most": max(files), "snapshots": [len(one.table.metadata.snapshots) for one in overwritten]}
    after = f"up, after {turns:,} turns"
    report.add(
        Figure(f"{after}, files in the store", files[-1], "files", files[3], "after 2 hours", 1.1, 1.1,
               judged="ratio", detail=detail)
    )  # fmt: skip
    report.add(Figure(f"{after}, a turn", cost, "ms of CPU", first, "in the first 2 hours", 1.1, 1.1, judged="ratio"))


class _Overwritten:
    """A table of which each turn writes the file anew. The one before is there for the ten minutes of a scan."""

    def __init__(self, store: FileStore, name: str) -> None:
        self._store, self._name, self.table = store, name, Table.create(store, name)
        self._made = _written(store, name, 0)
        self._bytes = store.read(store.relative(self._made.location))
        self._last: list[str] = []
        store.delete([store.relative(self._made.location)])

    def turn(self, number: int) -> None:
        """Put another file in the place of the last one."""
        file = LakeFile(0, number + 1, _day(number), self._name, f"{number:x}")
        one = replace(self._made, location=self._store.location(file.path))
        self._store.write(file.path, self._bytes)
        self.table = _land(self._store, self.table.replace([one], self._last, now_ms=_ms(number)))
        self._last = [one.location]


def _compact(store: FileStore, table: Table, number: int) -> Table:
    groups = list(compact.groups_of(table.files(), "events", _day(number)))
    added = [compact.merge_of(store, "events", group).run() for group in groups]
    removed = [one.location for group in groups for one in group]
    return _land(store, table.replace(added, removed, now_ms=_ms(number) + 1)) if groups else table


def _land(store: FileStore, prepared: Prepared) -> Table:
    """What `Turn` does when the compare-and-set has gone through."""
    store.delete(store.relative(location) for location in prepared.gone)
    return prepared.table


def _written(store: FileStore, table: str, number: int) -> WrittenFile:
    """A file with one row."""
    values: dict[str, Any] = {
        "id": number + 1, "stream": "/bench", "kind": "data", "time": _at(number), "body": b"x" * 200,
        "hour": _at(number),
    }  # fmt: skip
    schema = arrow_schema(table)
    rows = pa.table([pa.array([values.get(one.name)], one.type) for one in schema], schema=schema)
    written = write_file(store, LakeFile(number, number + 1, _day(number), table), [rows])
    if written is None:
        raise AssertionError("a file with a row was not written")
    return written


def _at(number: int) -> datetime:
    return BEGIN + timedelta(seconds=TURN_SECONDS * number)


def _day(number: int) -> str:
    return f"{_at(number):%Y-%m-%d}"


def _ms(number: int) -> int:
    return int(_at(number).timestamp() * 1000)
