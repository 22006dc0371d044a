"""Tables with one row for each key: new rows are merged with those that are there, in the files that have them.

A turn rewrites the files that may hold one of its keys; a small table (`SURELY_BYTES`) is rewritten whole. The bounds
in the manifests name the candidates; if these are large, their keys are compared. So one late record does not make a
turn read a large table.

Rows stay in Arrow from file to file. A few rows are merged in the driver's process: starting Spark tasks would take
longer. For many rows, each task reads some files and splits their rows into buckets by key; Spark moves the pieces, as
bytes, to the tasks that merge and write them. No row becomes an object of the JVM.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import PlannedFile, WrittenFile, read_batches, write_file
from penstock.iceberg.store import FileStore
from penstock.pipeline import jobs
from penstock.pipeline.commit import Intent, TableChange, Turn
from penstock.pipeline.writing import Split
from penstock.wire.lake_files import LakeFile

R = TypeVar("R")
S = TypeVar("S", bound="RowSource")

SURELY_BYTES: Final = 1024 * 1024
"""Files that are no larger, all together, are rewritten without a closer look at what is in them."""

HERE_ROWS: Final = 100_000
"""Rows that are merged in the driver's process, which takes some 100 ms. Starting tasks takes as long."""


@dataclass(frozen=True, slots=True)
class MergedTable:
    """How a table keeps one row for each key."""

    name: str
    keys: tuple[str, ...]
    ranges: tuple[str, ...]  # those of the keys whose bounds tell files apart
    merge: Callable[[pa.Table], pa.Table]  # rows of the table → one for each key
    order: tuple[str, ...]  # of the rows within a file
    split: Split | None = None
    repeats: bool = False  # many new rows have the same keys: they are merged before they are dealt out


class RowSource(Protocol):
    """Where a task gets rows of a merged table from."""

    @property
    def count(self) -> int:
        """How many there are, about."""

    def rows(self) -> Iterator[pa.Table]:
        """The rows, some at a time."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of files: as they are, or as *make* makes them of others."""

    store: FileStore
    location: str
    count: int
    make: Callable[[pa.Table], pa.Table] | None = None

    def rows(self) -> Iterator[pa.Table]:
        for batch in read_batches(self.store, self.location):
            rows = pa.Table.from_batches([batch])
            yield self.make(rows) if self.make else rows


def merge_into(
    place: jobs.Workplace, turn: Turn, table: MergedTable, fresh: Sequence[RowSource], intent: Intent
) -> TableChange:
    """Merge *fresh* rows into *table*: new files in the place of those that have any of their keys."""
    files: Sequence[PlannedFile] = turn.table(table.name).files()
    if sum(one.size for one in files) > SURELY_BYTES:
        files = touched(place, files, table, fresh)
    place.lake.check(files)
    lo = min([intent.after, *(one.file.lo for one in files)])
    name = LakeFile(lo, intent.upto, intent.slices[-1].day, table.name)
    held = [StoredRows(place.lake.store, one.location, one.rows) for one in files]
    return TableChange(table.name, merge(place, table, fresh, held, name), [one.location for one in files])


def merge(
    place: jobs.Workplace, table: MergedTable, fresh: Sequence[RowSource], held: Sequence[RowSource], name: LakeFile
) -> list[WrittenFile]:
    """Write the rows of all sources, those with the same keys as one. *held* rows have each key once."""
    rows = round(_count(fresh) * _fraction_left(table, fresh)) + _count(held)
    tasks = -(-rows // jobs.TASK_ROWS)
    made = in_buckets(place, table, [*fresh, *held], tasks, _WriteMerged(place.lake.store, table, name))
    return [one for written in made for one in written]


def _fraction_left(table: MergedTable, fresh: Sequence[RowSource]) -> float:
    """How many of the new rows are left when those with the same keys are one, as three samples of them say.

    It is never too low by much: rows of different samples may have the same keys as well.
    """
    if not table.repeats or _count(fresh) <= jobs.TASK_ROWS:
        return 1.0
    sources = [fresh[number] for number in sorted({0, len(fresh) // 2, len(fresh) - 1})]
    samples = [rows for rows in (next(_rows([one]), None) for one in sources) if rows]
    left, whole = sum(table.merge(rows).num_rows for rows in samples), sum(rows.num_rows for rows in samples)
    return float(left / max(1, whole))


def in_buckets(
    place: jobs.Workplace,
    table: MergedTable,
    sources: Sequence[RowSource],
    buckets: int,
    finish: Callable[[pa.Table], R],
) -> list[R]:
    """Split the sources' rows into buckets by key, and call *finish* on each. A few rows are one bucket, done here."""
    if _count(sources) <= HERE_ROWS:
        rows = list(_rows(sources))
        return [finish(pa.concat_tables(rows))] if rows else []
    at_once, chunks = place.spark.sparkContext.defaultParallelism, chunks_of(place, sources)
    if buckets > 1:
        buckets = -(-buckets // at_once) * at_once  # so that none is left for a last round of its own
    deal = _Deal(table.keys, table.merge if table.repeats else None, max(1, buckets))
    dealt = place.spark.sparkContext.parallelize(chunks, len(chunks)).flatMap(deal).partitionBy(deal.buckets, int)
    return dealt.mapPartitions(_Finish(finish)).collect()


def _count(sources: Iterable[RowSource]) -> int:
    return sum(one.count for one in sources)


def _rows(sources: Iterable[RowSource]) -> Iterator[pa.Table]:
    return (rows for one in sources for rows in one.rows() if rows.num_rows)


def chunks_of(place: jobs.Workplace, sources: Sequence[S]) -> list[tuple[S, ...]]:
    """What each task reads: a few rows are one chunk, which is read here."""
    if not sources or _count(sources) <= HERE_ROWS:
        return [tuple(sources)] if sources else []
    usual = 2 * place.spark.sparkContext.defaultParallelism
    tasks = min(len(sources), max(usual, -(-len(sources) // jobs.TASK_FILES)))
    return [tuple(sources[number::tasks]) for number in range(tasks)]


@dataclass(frozen=True, slots=True)
class _Deal:
    """Rows of some sources → pieces, each for one bucket, as (bucket, Arrow's bytes)."""

    keys: tuple[str, ...]
    merge: Callable[[pa.Table], pa.Table] | None  # where that makes them fewer
    buckets: int

    def __call__(self, chunk: Sequence[RowSource]) -> Iterator[tuple[int, bytes]]:
        for rows in _rows(chunk):
            few = self.merge(rows) if self.merge else rows
            number = (row_hashes(few, self.keys) % self.buckets).astype(numpy.int64)
            order = numpy.argsort(number, kind="stable")
            sorted_rows, ends = few.take(pa.array(order)), numpy.searchsorted(number[order], range(self.buckets + 1))
            for bucket in range(self.buckets):
                if ends[bucket] < ends[bucket + 1]:
                    piece = sorted_rows.slice(ends[bucket], ends[bucket + 1] - ends[bucket])
                    yield bucket, _to_bytes(piece)


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


@dataclass(frozen=True, slots=True)
class _Finish:
    """The pieces of one bucket → what is made of them."""

    finish: Callable[[pa.Table], Any]

    def __call__(self, pieces: Iterable[tuple[int, bytes]]) -> Iterator[Any]:
        rows = [pa.ipc.open_stream(piece).read_all() for _, piece in pieces]
        if rows:
            yield self.finish(pa.concat_tables(rows))


@dataclass(frozen=True, slots=True)
class _WriteMerged:
    """Rows → files with one row for each key."""

    store: FileStore
    table: MergedTable
    file: LakeFile

    def __call__(self, rows: pa.Table) -> list[WrittenFile]:
        merged = self.table.merge(rows).sort_by([(column, "ascending") for column in self.table.order])
        parts = self.table.split(self.file, merged) if self.table.split else [(self.file, merged)]
        written = [write_file(self.store, name, [part]) for name, part in parts]
        return [one for one in written if one]


# ── which files have any of the keys ───────────────────────────────────────────────────────────


def touched(
    place: jobs.Workplace, files: Sequence[PlannedFile], table: MergedTable, fresh: Sequence[RowSource]
) -> list[PlannedFile]:
    """Those of *files* that may have one of the keys of *fresh*: by bounds, and by keys if that leaves much."""
    bounds = [[file.bounds(column) for column in table.ranges] for file in files]
    found = place.in_tasks(_MayHold(table.ranges, bounds), chunks_of(place, fresh))
    likely = [files[number] for number in sorted(set[int]().union(*found))]
    if sum(one.size for one in likely) <= SURELY_BYTES:
        return likely
    near = _KeyHashes(table.keys, table.ranges, [[one.bounds(column) for column in table.ranges] for one in likely])
    hashes = numpy.unique(numpy.concatenate(place.in_tasks(near, chunks_of(place, fresh))))
    held = [StoredRows(place.lake.store, one.location, one.rows) for one in likely]
    place.lake.check(likely)
    answers = place.in_tasks(_HoldsAny(table.keys, hashes), chunks_of(place, held))
    return [one for one in likely if any(one.location in names for names in answers)]


@dataclass(frozen=True, slots=True)
class _MayHold:
    """The numbers of the files whose bounds do not rule all rows of some sources out."""

    ranges: tuple[str, ...]
    bounds: list[list[tuple[Any, ...]]]

    def __call__(self, chunk: Sequence[RowSource]) -> set[int]:
        found: set[int] = set()
        for rows in _rows(chunk):
            columns = [rows[name] for name in self.ranges]
            found |= {
                number for number, ranges in enumerate(self.bounds) if number not in found and _any(columns, ranges)
            }
        return found


def _any(columns: Sequence[pa.ChunkedArray], ranges: list[tuple[Any, ...]]) -> bool:
    return bool(_inside(columns, ranges).any())


def _inside(columns: Sequence[pa.ChunkedArray], ranges: list[tuple[Any, ...]]) -> Any:
    """Which rows a file with these bounds may have. Those without a value may be anywhere."""
    inside = numpy.ones(len(columns[0]), bool)
    for column, (least, greatest) in zip(columns, ranges, strict=True):
        if least is not None:
            inside &= _true(pc.greater_equal(column, pa.scalar(least, column.type)))
        if greatest is not None:
            inside &= _true(pc.less_equal(column, pa.scalar(greatest, column.type)))
    return inside


def _true(answers: pa.ChunkedArray) -> Any:
    return pc.fill_null(answers, True).combine_chunks().to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True)
class _KeyHashes:
    """The hashes of those keys of some sources, each once, that files with such bounds may have.

    Most rows of a turn are newer than all files, and none of these: only late ones come to the driver.
    """

    keys: tuple[str, ...]
    ranges: tuple[str, ...]
    bounds: list[list[tuple[Any, ...]]]

    def __call__(self, chunk: Sequence[RowSource]) -> Any:
        found = [numpy.unique(row_hashes(self._near(rows), self.keys)) for rows in _rows(chunk)]
        return numpy.concatenate([numpy.empty(0, numpy.uint64), *found])

    def _near(self, rows: pa.Table) -> pa.Table:
        columns, near = [rows[name] for name in self.ranges], numpy.zeros(rows.num_rows, bool)
        for ranges in self.bounds:
            near |= _inside(columns, ranges)
            if near.all():
                break
        return rows.filter(pa.array(near))


@dataclass(frozen=True, slots=True)
class _HoldsAny:
    """The locations of those files that have a key with one of these hashes."""

    keys: tuple[str, ...]
    hashes: Any  # in order

    def __call__(self, chunk: Sequence[StoredRows]) -> set[str]:
        return {one.location for one in chunk if any(self._has(rows) for rows in one.rows())}

    def _has(self, rows: pa.Table) -> bool:
        wanted = row_hashes(rows, self.keys)
        at = numpy.searchsorted(self.hashes, wanted)  # numpy.isin sorts both anew for each piece
        inside = at < len(self.hashes)
        return bool((self.hashes[at[inside]] == wanted[inside]).any())


def row_hashes(rows: pa.Table, columns: Sequence[str]) -> Any:
    """A number for each row, by these columns: the same for equal values, in every process."""
    found = numpy.zeros(rows.num_rows, numpy.uint64)
    for name in columns:
        found = (found ^ _hashes(rows[name])) * numpy.uint64(0x9E3779B97F4A7C15)
        found ^= found >> numpy.uint64(29)
    return found


def _hashes(column: pa.ChunkedArray) -> Any:
    if not pa.types.is_string(column.type):
        return pc.fill_null(column.cast(pa.int64()), -1).to_numpy().astype(numpy.uint64)
    values = pc.fill_null(column, "").combine_chunks().dictionary_encode()
    known = [zlib.crc32(one.encode()) for one in values.dictionary.to_pylist()]
    return numpy.array(known, numpy.uint64)[values.indices.to_numpy()]
