"""Takes over a lake from before Iceberg. The old one stays as it is.

It was a folder whose files were tables by their names alone: `<table>/day=2026-11-15/e-<lo>-<hi>.parquet`, with `-1`,
`-2` … after it once something in it had been erased.

    events, ledger, unreadable                       the files are taken as they are: linked where both lakes are in one
                                                     file system, else copied. They have no field ids; the tables'
                                                     mapping of names (`iceberg/schemas.py`) makes all readers agree
    deliveries, positions, rollup_hourly, activity   had several rows for one key, which are folded into one

Bytes are compared by their hashes, folded rows one by one; then the server's record is moved, by the one
compare-and-set. Cut off anywhere, it is run again: records that were moved stay, files that are there are not copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from penstock.errors import InputInvalid
from penstock.iceberg.files import WrittenFile, WrittenWrong, arrow_schema, describe_file, read_batches
from penstock.iceberg.store import FileStore
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import TableChange
from penstock.pipeline.jobs import BEGIN, TASK_ROWS, JobOutcome, Workplace, ledger, rollup, say_progress
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import MARK, LakeMismatch, claim, is_here, settle
from penstock.pipeline.ledger_rows import LOOKED_AT, Heads, batches_in, find_repeats, heads_to_rows
from penstock.pipeline.merging import MergedTable, RowSource, StoredRows, in_buckets, merge
from penstock.wire.lake_files import ADOPTED, LETTERS, RECORDS, LakeFile, first_hole

UNDER_WAY: Final = "migrating.json"
"""In the new place until all is done: whose lake is being taken over."""

AT_ONCE: Final = 64
"""Files between two lines of progress."""

FOLDED: Final[Mapping[str, MergedTable]] = {
    one.name: one for one in (ledger.DELIVERIES, ledger.POSITIONS, rollup.ROLLUP, rollup.ACTIVITY)
}
_NAME: Final = re.compile(r"([a-z])-([0-9]{1,19})-([0-9]{1,19})(?:-[1-9][0-9]{0,8})?\.parquet", re.ASCII)
_DAY: Final = re.compile(r"day=([0-9]{4}-[0-9]{2}-[0-9]{2})", re.ASCII)
_BLOCK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class OldFile:
    """A file of the old lake, and what its name says."""

    file: LakeFile
    path: Path


def old_files(root: Path, table: str, upto: int) -> list[OldFile]:
    """The files of a table with ids up to *upto*, in order: those beyond are of a turn that is to be redone."""
    found: list[OldFile] = []
    for path in root.glob(f"{table}/day=*/*.parquet"):
        name, day = _NAME.fullmatch(path.name), _DAY.fullmatch(path.parent.name)
        if name and day and name[1] == LETTERS[table] and int(name[3]) <= upto:
            found.append(OldFile(LakeFile(int(name[2]), int(name[3]), day[1], table), path))
    return sorted(found)


# ── the files that are taken as they are ───────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AdoptFile:
    """What one task does: take a file over. Its name tells its hash, so that it is not taken over twice."""

    store: FileStore
    old: OldFile

    def run(self) -> WrittenFile | None:
        """The file in the new place, byte by byte the same; None for one without rows."""
        with self.old.path.open("rb") as stream:
            digest = _digest(stream)
        path = replace(self.old.file, unique=ADOPTED + digest[:16]).path
        if self._stored_digest(path) != digest:
            self._take(path)
            if self._stored_digest(path) != digest:
                raise WrittenWrong(f"{self.store.location(path)} is not what {self.old.path} is")
        found = describe_file(self.store, path)
        return found if found.rows else None

    def _stored_digest(self, path: str) -> str:
        try:
            with self.store.files.open_input_file(self.store.place(path)) as stream:
                return _digest(stream)
        except FileNotFoundError:
            return ""

    def _take(self, path: str) -> None:
        self.store.delete([path])  # what a copy left that was cut off
        self.store.make_folder(path.rpartition("/")[0])
        if self.store.is_local:
            with suppress(OSError):  # another file system, or one without links
                os.link(self.old.path, self.store.place(path))
                return
        with self.old.path.open("rb") as source, self.store.files.open_output_stream(self.store.place(path)) as target:
            shutil.copyfileobj(source, target, _BLOCK)


def _digest(stream: Any) -> str:
    found = hashlib.sha256()
    while block := stream.read(_BLOCK):
        found.update(block)
    return found.hexdigest()


def _adopt(place: Workplace, table: str, files: Sequence[OldFile]) -> TableChange:
    taken: list[WrittenFile] = []
    for start in range(0, len(files), AT_ONCE):
        tasks = [AdoptFile(place.lake.store, one) for one in files[start : start + AT_ONCE]]
        taken += (one for one in place.in_tasks(AdoptFile.run, tasks) if one)
        say_progress(f"migrate: {table}: {start + len(tasks):,} of {len(files):,} files taken over and compared")
    return TableChange(table, taken)


# ── the tables that are folded ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class OldRows:
    """The rows of a file of the old lake, with today's columns."""

    table: str
    path: str
    count: int

    def rows(self) -> Iterator[pa.Table]:
        with parquet.ParquetFile(self.path) as file:
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                known = [rows[one.name] if one.name in rows.schema.names else None for one in arrow_schema(self.table)]
                yield pa.table(
                    [
                        pa.nulls(rows.num_rows, one.type) if column is None else column.cast(one.type)
                        for column, one in zip(known, arrow_schema(self.table), strict=True)
                    ],
                    arrow_schema(self.table).names,
                )


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows that are to be compared: with a column that says on which side they are."""

    source: RowSource
    side: int

    @property
    def count(self) -> int:
        return self.source.count

    def rows(self) -> Iterator[pa.Table]:
        return (_on_side(rows, self.side) for rows in self.source.rows())


def _on_side(rows: pa.Table, side: int) -> pa.Table:
    return rows.append_column("side", pa.repeat(pa.scalar(side, pa.int64()), rows.num_rows))


@dataclass(frozen=True, slots=True)
class _CountDifferences:
    """How many rows are in only one of two tables: the old rows, merged (side 1), and the new rows (side -1)."""

    table: MergedTable

    def __call__(self, rows: pa.Table) -> int:
        old, new = (rows.filter(pc.equal(rows["side"], side)).drop_columns("side") for side in (1, -1))
        both = pa.concat_tables([_on_side(self.table.merge(old), 1), _on_side(new, -1)])
        sums = both.group_by(new.schema.names).aggregate([("side", "sum")])["side_sum"]
        return int(pc.sum(pc.abs(sums)).as_py() or 0)


def _fold(place: Workplace, table: MergedTable, files: Sequence[OldFile]) -> TableChange:
    """One row for each key, out of all rows that the old files have."""
    if not files:
        return TableChange(table.name, ())
    old = [OldRows(table.name, str(one.path), parquet.read_metadata(one.path).num_rows) for one in files]
    name = LakeFile(min(one.file.lo for one in files), files[-1].file.hi, files[-1].file.day, table.name)
    written = merge(place, table, old, (), name)
    before, after = sum(one.count for one in old), sum(one.rows for one in written)
    sides: list[RowSource] = [_Side(one, 1) for one in old]
    sides += (_Side(StoredRows(place.lake.store, one.location, one.rows), -1) for one in written)
    as_they_are = replace(table, repeats=False)  # nothing is merged before it is dealt out
    wrong = sum(in_buckets(place, as_they_are, sides, -(-before // TASK_ROWS), _CountDifferences(table)))
    if wrong:
        raise WrittenWrong(f"{wrong:,} rows of {table.name} are not what the old lake's rows come to")
    say_progress(f"migrate: {table.name}: {after:,} rows out of {before:,}, compared one by one")
    return TableChange(table.name, written)


# ── all of it ──────────────────────────────────────────────────────────────────────────────────


def plan(client: PipelineClient, old: Path, new: Lake) -> dict[str, list[OldFile]]:
    """The files of every table that is to be taken over, or was. Refuses what cannot be taken over; changes nothing."""
    _check_places(old, new)
    if not old.is_dir():
        raise InputInvalid("OLD", f"{old} is no folder", remedy="Give the folder of the old lake.")
    former = open_lake(old)
    identity = claim(client, former)
    new.epoch = former.epoch
    _check_new(new, str(identity.value["id"]))
    found: dict[str, list[OldFile]] = {}
    for name, tables in RECORDS.items():
        done = int(client.get(f"lake/{name}").value.get("done", 0))
        found |= {table: old_files(old, table, done) for table in tables}
        if name == "events":
            begin = int(client.get(BEGIN).value.get("after", 0))
            _check_ids(found["events"], begin, done)
    if not any(found.values()):
        raise InputInvalid("OLD", f"{old} has no files of a lake of the earlier version")
    return found


def migrate(place: Workplace, old: Path) -> JobOutcome:
    """Take over the lake in the folder *old* to that of *place*, which is empty."""
    client, lake = place.client, place.lake
    files = plan(client, old, lake)
    lake.store.put(UNDER_WAY, json.dumps({"id": claim(client, open_lake(old)).value["id"]}).encode())
    rows = 0
    for name in RECORDS:
        rows += _take_over(place, name, files)
    settle(client, lake)
    client.delete("lake/erase")
    lake.store.delete([UNDER_WAY])
    count = sum(map(len, files.values()))
    words = (
        f"migrate: {count:,} files of {old} are {rows:,} rows in {lake.place}\n"
        f"Set lake.url = {lake.place}, and start the server again. {old} was not changed: remove it when you like,\n"
        "and after an erase in any case, which does not reach it."
    )
    return JobOutcome(words, {"files": count, "rows": rows, "lake": lake.place})


def _take_over(place: Workplace, name: str, files: Mapping[str, Sequence[OldFile]]) -> int:
    """The tables of one record; returns how many rows they have."""
    kept = place.client.get(f"lake/{name}")
    if not kept.version:
        return 0
    pointers = kept.value.get("tables", {})
    if pointers and all(is_here(place.lake, table, one) for table, one in pointers.items()):
        say_progress(f"migrate: {', '.join(RECORDS[name])}: done before")
        return sum(one.rows for table in pointers for one in place.files(table))
    turn = place.turn(name)
    turn.start_anew()
    changes = [
        _fold(place, FOLDED[table], files[table]) if table in FOLDED else _adopt(place, table, files[table])
        for table in RECORDS[name]
    ]
    turn.replace(changes, _memory(place, name, kept.value.get("memory", {}), changes))
    turn.sweep()
    turn.end()
    return sum(one.rows for change in changes for one in change.added)


def _memory(
    place: Workplace, name: str, memory: Mapping[str, Any], changes: Sequence[TableChange]
) -> Mapping[str, Any]:
    """What the record is to remember: as before, in the places where it is kept today."""
    if name == "events":
        return {"erased": place.client.get("lake/erase").value.get("done", 0)}
    if name != "ledger":
        return {}
    if "batches" in memory:
        return {"batches": memory["batches"]}
    return {"batches": heads_to_rows(_heads(place, [one.location for one in changes[0].added]))}


@dataclass(frozen=True, slots=True)
class FindHeads:
    """What one task does: find the newest batch of each epoch in a file of `ledger`."""

    store: FileStore
    location: str

    def run(self) -> Heads:
        rows = read_batches(self.store, self.location, LOOKED_AT)
        return find_repeats((batch for piece in rows for batch in batches_in(piece)), {})[1]


def _heads(place: Workplace, locations: Sequence[str]) -> Heads:
    """The heads after all batches in these files, which are in order."""
    heads: Heads = {}
    for start in range(0, len(locations), AT_ONCE):
        tasks = [FindHeads(place.lake.store, one) for one in locations[start : start + AT_ONCE]]
        found = [one for some in place.in_tasks(FindHeads.run, tasks) for one in some.items()]
        heads = find_repeats(((one.entry, *key, one.sequence) for key, one in found), heads)[1]
    return heads


def _check_places(old: Path, new: Lake) -> None:
    if new.store.is_local and (Path(new.place).is_relative_to(old) or old.is_relative_to(new.place)):
        raise InputInvalid("NEW", f"{new.place} and {old} are not apart", remedy="Give another place.")


def _check_new(new: Lake, id: str) -> None:
    """Refuse a place that has anything but what an earlier run has left."""
    for name in (MARK, UNDER_WAY):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            if json.loads(new.store.read(name))["id"] == id:
                return
    if next(iter(new.store.list("")), None) is not None:
        raise LakeMismatch("lake", f"{new.place} is not empty", remedy="Give an empty place: the lake is made there.")


def _check_ids(files: Sequence[OldFile], begin: int, done: int) -> None:
    """Every id is in one file of `events`, and in no other."""
    names = [one.file for one in files]
    if hole := first_hole(names, min(begin, done), done):
        said = f"no file of the old lake's events has the ids {hole[0] + 1:,} to {hole[1]:,}"
        raise LakeMismatch("lake", said, remedy="Put the file back, from a backup of the old lake.")
    for one, following in pairwise(files):
        if following.file.lo < one.file.hi:
            said = f"{one.path} and {following.path} have the same ids"
            raise LakeMismatch("lake", said, remedy="Keep the newer of the two: the other was left by a crash.")
