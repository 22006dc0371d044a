"""`compact`: the many small files of an hour → one, day by day.

The day's folder is exchanged for one in which they are (`pipeline/replace_files.py`).

Only what lies below the watermark is touched. An intent that is redone after a crash would otherwise bring back
files that are part of larger ones now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from penstock.pipeline.commit import Slice, Staged, StagedWrong, watermark
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.jobs.ledger import first_positions, fold_deliveries
from penstock.pipeline.jobs.rollup import add_up, merge_activity
from penstock.pipeline.replace_files import exchange_files, sweep, workshop
from penstock.pipeline.staging import rows_of, stage_one
from penstock.pipeline.tables import Lake
from penstock.wire.lake import LakeFile

OPTIONS: Mapping[str, str] = {"all": "also the hour that is not over yet"}

HOUR_SECONDS: Final = 3600

WHOLE: Final = ("events", "ledger")
"""Tables that have a file for every id."""

Merge = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class CompactionKind:
    """How the files of a table are put together."""

    record: str  # whose watermark it lies under
    merge: Merge
    keeps_rows: bool  # the rows are the same, only in fewer files


KINDS: Final = {
    "events": CompactionKind("events", lambda frame: frame.sortWithinPartitions("id"), True),
    "ledger": CompactionKind("ledger", lambda frame: frame.sortWithinPartitions("entry"), True),
    "deliveries": CompactionKind("ledger", lambda frame: _sorted(fold_deliveries(frame)), False),
    "positions": CompactionKind("ledger", first_positions, False),
    "rollup_hourly": CompactionKind("rollup", add_up, False),
    "activity": CompactionKind("rollup", merge_activity, False),
    "unreadable": CompactionKind("ledger", lambda frame: frame.sortWithinPartitions("entry"), True),
}


def _sorted(deliveries: DataFrame) -> DataFrame:
    return deliveries.coalesce(1).sortWithinPartitions("first", "key", "recipient")


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Put together what can be, in every table."""
    open_hour = None if "all" in options else int(time.time()) // HOUR_SECONDS
    before = after = 0
    sweep(place.lake)
    for table, kind in KINDS.items():
        done = watermark(place.client, kind.record)
        for groups in groups_of(place.lake, table, done, open_hour).values():
            before += sum(map(len, groups))
            after += len(groups)
            _compact_day(place, table, kind, groups)
    return JobOutcome(f"compact: {before:,} files into {after:,}", {"before": before, "after": after})


# ── choosing ───────────────────────────────────────────────────────────────────────────────────


def groups_of(lake: Lake, table: str, done: int, open_hour: int | None) -> dict[str, list[list[LakeFile]]]:
    """Neighbours of one day and one closed hour, at least two of each, by day."""
    found: dict[str, list[list[LakeFile]]] = {}
    for group in _neighbours(lake, table, done, open_hour):
        if len(group) > 1:
            found.setdefault(group[0].day, []).append(group)
    return found


def _neighbours(lake: Lake, table: str, done: int, open_hour: int | None) -> Iterator[list[LakeFile]]:
    files = lake.files(table)
    for (_, hour), same in groupby(files, lambda file: (file.day, _hour(lake, file))):
        if open_hour is not None and hour >= open_hour:
            continue
        run: list[LakeFile] = []
        for file in same:
            # Where ids are missing between two files there is a hole: it must stay visible.
            if file.hi > done or (run and table in WHOLE and run[-1].hi != file.lo):
                yield run
                run = []
            if file.hi <= done:
                run.append(file)
        yield run


def _hour(lake: Lake, file: LakeFile) -> int:
    """The hour in which a file was published. One that was put together keeps the hour of its parts."""
    return int(lake.path(file).stat().st_mtime) // HOUR_SECONDS


# ── putting together ───────────────────────────────────────────────────────────────────────────


def _compact_day(place: Workplace, table: str, kind: CompactionKind, groups: Sequence[Sequence[LakeFile]]) -> None:
    with workshop(place.lake) as work:
        made = [_merge(place, table, kind, group, work / str(group[0].lo)) for group in groups]
        with place.lake.locked():
            exchange_files(place.lake, [file for group in groups for file in group], made, work, place.faults)


def _merge(place: Workplace, table: str, kind: CompactionKind, group: Sequence[LakeFile], folder: Path) -> Staged:
    """One file of several."""
    sources = [place.lake.path(file) for file in group]
    frame = place.read(table, group).coalesce(1)
    whole = Slice(group[0].lo, group[-1].hi, group[0].day)
    merged = stage_one(kind.merge(frame), folder, table, whole, empty=True)[0]
    rows = sum(map(rows_of, sources))
    if kind.keeps_rows and rows_of(merged.path) != rows:
        raise StagedWrong(f"{rows_of(merged.path)} rows came out of {rows} of {table}")
    hour = sources[0].stat().st_mtime
    os.utime(merged.path, (hour, hour))
    return merged
