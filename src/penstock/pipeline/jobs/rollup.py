"""`rollup`: `events`, `ledger` → `rollup_hourly`, sums of hours, and `activity`, who was last heard of when.

Both have one row for each key. A turn adds its sums to those of the same hours, whose files are written again
(`pipeline/merging.py`). Percentiles cannot be added; counts for each class of latency can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import PlannedFile, read_batches
from penstock.iceberg.store import FileStore
from penstock.pipeline.commit import Intent, TableChange, Turn, watermark
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.jobs.ledger import grouped, plan_from_lake
from penstock.pipeline.ledger_rows import BATCH
from penstock.pipeline.merging import MergedTable, chunks_of, merge_into
from penstock.pipeline.writing import by_hour, rows_between
from penstock.wire.lake_files import overlapping
from penstock.wire.table_columns import TABLES

OPTIONS: Mapping[str, str] = {}

TURN_IDS: Final = 5_000_000
_KEYS: Final = ("hour", "stream", "door", "state", "latency_ms")
_WHO: Final = ("door", "recipient")
_NAMES: Final = [column.name for column in TABLES["rollup_hourly"]]
_PUBLISHED: Final = ("id", "stream", "index", "time", "body")
_ENTRY: Final = pa.schema([("id", pa.int64()), ("index", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])
_RECORDS: Final = ("entry", "time", "state", "door", "recipient", "stream", "first", "last")


# ── transforms ─────────────────────────────────────────────────────────────────────────────────


def accepted(events: pa.Table) -> pa.Table:
    """A row for each entry that was published, to be added up. Streams of the system do not count."""
    system = pc.starts_with(events["stream"], "/_")
    published = events.filter(pc.and_(pc.is_valid(events["index"]), pc.invert(system)))
    return _sums(
        published,
        door=_same("", published),
        state=_same("accepted", published),
        latency_ms=pa.nulls(published.num_rows, pa.int64()),
        count=_same(1, published),
        bytes=pc.fill_null(pc.binary_length(published["body"]), 0).cast(pa.int64()),
    )


def delivered(records: pa.Table, entries: pa.Table) -> pa.Table:
    """A row for each record of the ledger, to be added up.

    *entries* (id, index, time) are those that records begin or end with, by id: the entries of an interval are counted
    by the indexes of its ends, and the latency is that of its last. A position is one record, of no latency.
    """
    told = records.filter(pc.not_equal(records["state"], BATCH))
    begin, end = (_found(told[name], entries) for name in ("first", "last"))
    taken = pc.subtract(told["time"].cast(pa.int64()), end["time"].cast(pa.int64()))
    latency = pc.if_else(pc.greater(told["first"], 0), pc.divide(taken.cast(pa.float64(), safe=False), 1000.0), None)
    return _sums(
        told,
        door=told["door"],
        state=told["state"],
        latency_ms=_class(latency),
        count=pc.fill_null(pc.add(pc.subtract(end["index"], begin["index"]), 1), 1),
        bytes=_same(0, told),
    )


def _sums(rows: pa.Table, **columns: Any) -> pa.Table:
    made = {"hour": pc.floor_temporal(rows["time"], unit="hour"), "stream": rows["stream"], **columns}
    return pa.table([made[name] for name in _NAMES], _NAMES)


def _same(value: str | int, rows: pa.Table) -> Any:
    return pa.repeat(pa.scalar(value), rows.num_rows)


def _found(ids: pa.ChunkedArray, entries: pa.Table) -> pa.Table:
    """The entries with these ids; nulls for those that are not there."""
    wanted, known = ids.to_numpy(), entries["id"].to_numpy()
    at = numpy.searchsorted(known, wanted)
    absent = numpy.append(known, -1)[at] != wanted
    return entries.take(pa.array(at, mask=absent))


def _class(latency_ms: Any) -> Any:
    """The least power of two that a latency does not exceed, 1 at least."""
    least = pc.max_element_wise(latency_ms, pa.scalar(1.0), skip_nulls=False)
    return pc.power(2.0, pc.ceil(pc.log2(least))).cast(pa.int64())


def add_up(rows: pa.Table) -> pa.Table:
    """Rows of `rollup_hourly` with the same keys → one."""
    return grouped(rows, _KEYS, {"count": "sum", "bytes": "sum"})


def heard_of(records: pa.Table) -> pa.Table:
    """When recipients were heard of, a row for each record."""
    told = records.filter(pc.not_equal(records["state"], BATCH))
    columns = [told["door"], told["recipient"], told["time"], told["time"], _same(1, told)]
    return pa.table(columns, [column.name for column in TABLES["activity"]])


def merge_activity(rows: pa.Table) -> pa.Table:
    """Rows of `activity` of the same recipient → one."""
    return grouped(rows, _WHO, {"first_time": "min", "last_time": "max", "records": "sum"})


# ── the job ────────────────────────────────────────────────────────────────────────────────────

ROLLUP: Final = MergedTable("rollup_hourly", _KEYS, ("hour",), add_up, _KEYS, by_hour, repeats=True)
ACTIVITY: Final = MergedTable("activity", _WHO, _WHO, merge_activity, _WHO, repeats=True)


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Sum up everything that is archived and decoded."""
    ready, files = min(watermark(place.client, "events"), watermark(place.client, "ledger")), 0
    for turn, intent in place.turns(
        "rollup", ready, lambda after: plan_from_lake(place, after, min(ready, after + TURN_IDS))
    ):
        changes, memory = changes_of(place, turn, intent)
        turn.publish(changes, memory)
        files += sum(len(change.added) for change in changes)
    return JobOutcome(f"rollup: {files:,} files up to id {ready:,}", {"files": files, "upto": ready})


def changes_of(place: Workplace, turn: Turn, intent: Intent) -> tuple[list[TableChange], Mapping[str, Any]]:
    """What changes in the tables, and what the record is to remember: as before."""
    return list(_merges(place, turn, intent)) if intent.slices else [], turn.memory


def _merges(place: Workplace, turn: Turn, intent: Intent) -> Iterator[TableChange]:
    store, after, upto = place.lake.store, intent.after, intent.upto
    published = [_Published(store, one.location, one.rows, after, upto) for one in place.events_in(after, upto)]
    found = [one for one in place.files("ledger") if one.file.overlaps(after, upto)]
    place.lake.check(found)
    records = [RecordsOf(store, one.location, one.rows, after, upto) for one in found]
    groups = overlapping(entries_of(place, records), lambda one: one.file)
    entries = tuple((max(one.file.hi for one in some), tuple(one.location for one in some)) for some in groups)
    yield merge_into(place, turn, ROLLUP, [*published, *(_Delivered(one, entries) for one in records)], intent)
    if records:
        yield merge_into(place, turn, ACTIVITY, records, intent)


@dataclass(frozen=True, slots=True)
class _Published:
    """Sums of what was published, from a file of `events`."""

    store: FileStore
    location: str
    count: int
    after: int
    upto: int

    def rows(self) -> Iterator[pa.Table]:
        for piece in read_batches(self.store, self.location, _PUBLISHED):
            yield add_up(accepted(pa.Table.from_batches([rows_between(piece, self.after, self.upto)])))


@dataclass(frozen=True, slots=True)
class RecordsOf:
    """The records in a file of `ledger` that the entries (after, upto] have brought; as rows, who was heard of."""

    store: FileStore
    location: str
    count: int
    after: int
    upto: int

    def rows(self) -> Iterator[pa.Table]:
        return (heard_of(records) for records in self.records())

    def records(self) -> Iterator[pa.Table]:
        """The rows of `ledger`."""
        for piece in read_batches(self.store, self.location, _RECORDS):
            yield pa.Table.from_batches([rows_between(piece, self.after, self.upto, "entry")])


@dataclass(frozen=True, slots=True)
class _Delivered:
    """Sums of records, with what files of `events` say of the entries that they name."""

    source: RecordsOf
    events: tuple[tuple[int, tuple[str, ...]], ...]  # last id, and where: one file, or those that overlap; in order

    @property
    def count(self) -> int:
        return self.source.count

    def rows(self) -> Iterator[pa.Table]:
        for records in self.source.records():
            yield add_up(delivered(records, self._entries(spoken_of(records, self.source.upto))))

    def _entries(self, ids: Any) -> pa.Table:
        wanted = pa.array(ids)
        numbers = numpy.unique(numpy.searchsorted([hi for hi, _ in self.events], ids))
        found = [
            piece.filter(pc.is_in(piece["id"], wanted))
            for number in numbers[numbers < len(self.events)]
            for location in self.events[number][1]
            for piece in read_batches(self.source.store, location, tuple(_ENTRY.names))
        ]
        return pa.Table.from_batches([one.cast(_ENTRY) for one in found], _ENTRY).sort_by("id")


def spoken_of(records: pa.Table, upto: int) -> Any:
    """The ids of the entries up to *upto* that records begin and end with, each once."""
    spoken = records.filter(pc.greater(records["first"], 0))
    ids = numpy.concatenate([spoken["first"].to_numpy(), spoken["last"].to_numpy()])
    return numpy.unique(ids[ids <= upto])


def entries_of(place: Workplace, records: Sequence[RecordsOf]) -> list[PlannedFile]:
    """The files of `events` that have any of the entries which *records* begin and end with.

    A late acknowledgement may name an old entry: the files in between are not read.
    """
    groups = list(overlapping(place.files("events"), lambda one: one.file))
    ends = tuple(max(one.file.hi for one in group) for group in groups)
    found = place.in_tasks(FilesSpokenOf(ends), chunks_of(place, records))
    wanted = [one for number in sorted(set[int]().union(*found)) for one in groups[number]]
    place.lake.check(wanted)
    return wanted


@dataclass(frozen=True, slots=True)
class FilesSpokenOf:
    """What one task does: find the numbers of the files that have the entries of some records.

    Files that overlap, which compaction puts apart, count as one.
    """

    ends: tuple[int, ...]  # the last ids of all files, in order

    def __call__(self, sources: Sequence[RecordsOf]) -> set[int]:
        found: set[int] = set()
        for one in sources:
            for records in one.records():
                numbers = numpy.searchsorted(self.ends, spoken_of(records, one.upto))
                found |= {int(number) for number in numpy.unique(numbers) if number < len(self.ends)}
        return found
