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


def measure_commits(report: Report, folder: Path, commits: int) -> None:
    """CPU of a commit that adds one file, after *commits* and after ten; nothing is ever compacted."""
    store = open_store(folder / "commits")
    table, costs = Table.create(store, "events"), []
    written = _write(store, 0)
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

    A shorter day than a whole one is compacted as often.
    """
    store, every = open_store(folder / "day"), max(1, turns * COMPACT_SECONDS // (24 * 3600))
    table, files, costs = Table.create(store, "events"), [], []
    say(f"{turns:,} turns")
    for number in range(turns):
        before = time.process_time()
        table = _land(store, table.append([_write(store, number)], now_ms=_ms(number)))
        costs.append(1000 * (time.process_time() - before))
        if (number + 1) % every == 0:
            files.append(sum(1 for _ in store.list("")))
            table = _compact(store, table, _ms(number) + 1)
    early = 4 * every
    cost, first = statistics.mean(costs[-early:]), statistics.mean(costs[:early])
    detail = {"most": max(files), "commits": turns}
    report.add(
        Figure("a day of up, files in the store", files[-1], "files", files[3], "after 2 hours", 1.5, 1.1,
               judged="ratio", detail=detail)
    )  # fmt: skip
    report.add(
        Figure("a day of up, a turn", cost, "ms of CPU", first, "in the first 2 hours", 1.5, 1.1, judged="ratio")
    )


def _compact(store: FileStore, table: Table, now_ms: int) -> Table:
    groups = list(compact.groups_of(table.files(), "events", f"{BEGIN:%Y-%m-%d}"))
    added = [compact.merge_of(store, "events", group).run() for group in groups]
    removed = [one.location for group in groups for one in group]
    return _land(store, table.replace(added, removed, now_ms=now_ms)) if groups else table


def _land(store: FileStore, prepared: Prepared) -> Table:
    """What `Turn` does when the compare-and-set has gone through."""
    store.delete(store.relative(location) for location in prepared.gone)
    return prepared.table


def _write(store: FileStore, number: int) -> WrittenFile:
    """A file with one event."""
    at = BEGIN + timedelta(seconds=TURN_SECONDS * number)
    values: dict[str, Any] = {"id": number + 1, "stream": "/bench", "kind": "data", "time": at, "body": b"x" * 200}
    schema = arrow_schema("events")
    rows = pa.table([pa.array([values.get(one.name)], one.type) for one in schema], schema=schema)
    written = write_file(store, LakeFile(number, number + 1, f"{BEGIN:%Y-%m-%d}", "events"), [rows])
    if written is None:
        raise AssertionError("a file with a row was not written")
    return written


def _ms(number: int) -> int:
    return int(BEGIN.timestamp() * 1000) + 1000 * TURN_SECONDS * number
