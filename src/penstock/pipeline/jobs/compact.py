"""`compact`: many small files → few, and a sweep.

Files of one day are put together up to `TARGET_BYTES`, each group within a task; those of `events` only where each
has the ids that follow those of the one before: where two days alternate around midnight, their files stay apart, as
names say which ids a file has all rows of (`pipeline/untangling.py`). While its day is not over, a file that makes up
more than half of a group is left as it is, and those before and after it are put together. So a row is written again
some few times, not every half hour, and however many files a day brings, a handful is left.

All tables of a record change in one commit (`commit.py`). What was replaced goes when no kept snapshot names it, ten
minutes later at the earliest: readers may be in the middle of a scan. Then files are swept that nothing names: what
turns have left that were cut off.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from penstock.iceberg.files import PlannedFile
from penstock.iceberg.store import FileStore
from penstock.pipeline.commit import TableChange, Turn
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.lake import columns_in
from penstock.pipeline.untangling import untangle
from penstock.pipeline.writing import MergeFiles
from penstock.wire.lake_files import TYPED, LakeFile, tables_of
from penstock.wire.table_columns import TABLES, Column

OPTIONS: Mapping[str, str] = {"all": "whatever there are two of, also of the day that is not over yet"}

TARGET_BYTES: Final = 128 * 1024 * 1024
SORTED_TARGET_BYTES: Final = 16 * 1024 * 1024
"""Of tables whose rows a task must sort, in memory; and whose files are written again for single rows."""

SORTED: Final[Mapping[str, tuple[str, ...]]] = {
    "deliveries": ("first", "key", "recipient"),
    "positions": ("recipient", "upto"),
    "rollup_hourly": ("hour", "stream", "door", "state", "latency_ms"),
    "activity": ("door", "recipient"),
}
"""Tables whose rows have another order than that of ids."""


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Put together what can be, in every table."""
    today = "" if "all" in options else time.strftime("%Y-%m-%d", time.gmtime())
    before = after = swept = 0
    for name in place.records():
        turn = place.turn(name)
        apart = untangle(place, turn) if name == "events" else TableChange(name, ())
        changes = [_compacted(place, turn, table, today) for table in tables_of(name)]
        turn.replace(changes)
        changes.append(apart)
        swept += turn.sweep()
        turn.end()
        before += sum(len(change.removed) for change in changes)
        after += sum(len(change.added) for change in changes)
    swept += _sweep_removed(place)
    words = f"compact: {before:,} files into {after:,}; {swept:,} swept that nothing names"
    return JobOutcome(words, {"before": before, "after": after, "swept": swept})


def _compacted(place: Workplace, turn: Turn, table: str, today: str) -> TableChange:
    groups = list(groups_of(turn.table(table).files(), table, today))
    for group in groups:
        place.lake.check(group)
    columns = () if table in TABLES else columns_in(table, {"memory": turn.memory})
    tasks = [merge_of(place.lake.store, table, group, columns) for group in groups]
    return TableChange(
        table, place.in_tasks(MergeFiles.run, tasks), [one.location for group in groups for one in group]
    )


def _sweep_removed(place: Workplace) -> int:
    """Delete files that an overtaken driver wrote for a typed table which was deleted meanwhile: no turn sweeps these.

    A turn takes its record before it writes a file. So a file that is listed first, and whose table then has no record,
    can be deleted: no turn will ever need it.
    """
    store = place.lake.store
    listed = [one.path for one in store.list(TYPED.rstrip("/"))]
    known = place.records()
    return store.delete(path for path in listed if "/".join(path.split("/")[:2]) not in known)


def merge_of(store: FileStore, table: str, group: Sequence[PlannedFile], columns: Sequence[Column] = ()) -> MergeFiles:
    """What the task of a group does."""
    names = [one.file for one in group]
    whole = LakeFile(min(one.lo for one in names), max(one.hi for one in names), names[0].day, table)
    locations, rows = tuple(one.location for one in group), sum(one.rows for one in group)
    return MergeFiles(store, whole, locations, rows, SORTED.get(table, ()), tuple(columns))


# ── choosing ───────────────────────────────────────────────────────────────────────────────────


def groups_of(files: Sequence[PlannedFile], table: str, today: str) -> Iterator[list[PlannedFile]]:
    """Small files of one day that are worth putting together. *today* is the day that is not over, if any."""
    for day, of_day in groupby(sorted(files, key=lambda one: (one.file.day, _kind(one), one.file)), _day_and_kind):
        for group in _neighbours(list(of_day), SORTED_TARGET_BYTES if table in SORTED else TARGET_BYTES):
            yield from (some for some in (_balanced(group) if day[0] == today else [group]) if len(some) > 1)


def _neighbours(files: Sequence[PlannedFile], target: int) -> Iterator[list[PlannedFile]]:
    group: list[PlannedFile] = []
    for one in files:
        apart = bool(group) and one.file.table == "events" and group[-1].file.hi != one.file.lo
        if group and (apart or sum(file.size for file in group) + one.size > target):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _balanced(group: list[PlannedFile]) -> Iterator[list[PlannedFile]]:
    """The parts of a group in which no file makes up more than half."""
    largest = max(range(len(group)), key=lambda number: group[number].size, default=0)
    if not group or 2 * group[largest].size <= sum(one.size for one in group):
        yield group
        return
    yield from _balanced(group[:largest])
    yield from _balanced(group[largest + 1 :])


def _kind(one: PlannedFile) -> str:
    """Files of one kind only are put together: hours of sums stay apart, as do items and intervals."""
    if one.file.table == "rollup_hourly":
        return str(one.bounds("hour")[0])
    return str(one.bounds("first") == (0, 0)) if one.file.table == "deliveries" else ""


def _day_and_kind(one: PlannedFile) -> tuple[str, str]:
    return one.file.day, _kind(one)
