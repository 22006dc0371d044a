"""Data files written in Spark's tasks: the driver gets their footers, never their rows.

Spark decides where and when a task runs, and runs it again when a worker is lost. Each run writes a file of its own;
the commit names the one whose task was the one that counted, and a sweep removes the others.

The archive copies slices of the log: rows go from the export's Arrow to Parquet in the task's own process, and none
enters the JVM, which costs a tenth of handing them to Spark (docs/decisions/0009-archive-in-tasks.md). Frames are
written by `write_frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.iceberg.files import WrittenFile, checked, read_batches, write_file
from penstock.iceberg.store import FileStore
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Slice
from penstock.pipeline.source import Part, read_slice
from penstock.pipeline.source_offsets import Cut
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import Column

_WRITTEN: Final = "location STRING, size BIGINT, footer BINARY, rows BIGINT"
_WRITTEN_ARROW: Final = pa.schema(
    [("location", pa.utf8()), ("size", pa.int64()), ("footer", pa.binary()), ("rows", pa.int64())]
)

Split = Callable[[LakeFile, pa.Table], Iterable[tuple[LakeFile, pa.Table]]]
"""How a task's rows are dealt out to files, where one file is not enough."""


@dataclass(frozen=True, slots=True)
class CopySlice:
    """What one task does: copy a slice of the log to a file."""

    client: PipelineClient
    store: FileStore
    file: LakeFile
    rows: int
    named: LakeFile | None = None  # what it is called, if it also stands for ids around the slice that have no rows

    def run(self) -> WrittenFile:
        """Write the file, complete and with as many rows as planned."""
        rows = read_slice(self.client, Part(Cut(self.file.lo, self.file.hi)))
        return checked(self.file, self.rows, write_file(self.store, self.named or self.file, rows))


@dataclass(frozen=True, slots=True)
class CopyRows:
    """What one task does: copy the rows of `events` with the ids in (after, upto] from one file to another."""

    store: FileStore
    location: str
    after: int
    upto: int
    file: LakeFile
    rows: int

    def run(self) -> WrittenFile:
        """Write it, with all of these rows."""
        batches = (rows_between(batch, self.after, self.upto) for batch in read_batches(self.store, self.location))
        return checked(self.file, self.rows, write_file(self.store, self.file, batches))


def rows_between(rows: pa.RecordBatch, after: int, upto: int, column: str = "id") -> pa.RecordBatch:
    """Those of *rows* whose ids are in (after, upto]."""
    return rows.filter(pc.and_(pc.greater(rows[column], after), pc.less_equal(rows[column], upto)))


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """What one task does: make one file of several."""

    store: FileStore
    file: LakeFile
    locations: tuple[str, ...]
    rows: int
    order: tuple[str, ...]  # to sort by; empty: the files follow each other
    columns: tuple[Column, ...] = ()  # of a typed table

    def run(self) -> WrittenFile:
        """Write it, with all rows."""
        batches = (batch for one in self.locations for batch in read_batches(self.store, one, columns=self.columns))
        rows: Iterable[pa.RecordBatch | pa.Table] = batches
        if self.order:
            rows = [pa.Table.from_batches(batches).sort_by([(column, "ascending") for column in self.order])]
        return checked(self.file, self.rows, write_file(self.store, self.file, rows, self.columns))


def file_of(table: str, one: Slice) -> LakeFile:
    """What the file of a slice is called."""
    return LakeFile(one.lo, one.hi, one.day, table)


def write_frame(frame: DataFrame, store: FileStore, files: Sequence[LakeFile]) -> list[WrittenFile]:
    """Write *frame*, each partition within its task. Partitions without rows make no file.

    *files* has the names for the partitions, one each, or one for all of them.
    """
    rows = frame.mapInArrow(_PartitionWriter(store, tuple(files)), _WRITTEN).collect()
    return [WrittenFile(row.location, row.size, bytes(row.footer), row.rows) for row in rows]


@dataclass(frozen=True, slots=True)
class _PartitionWriter:
    store: FileStore
    files: tuple[LakeFile, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        file = self.files[context.partitionId() if context and len(self.files) > 1 else 0]
        if written := write_file(self.store, file, batches):
            values = [[written.location], [written.size], [written.footer], [written.rows]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(one, kind.type) for one, kind in zip(values, _WRITTEN_ARROW, strict=True)],
                schema=_WRITTEN_ARROW,
            )


def by_hour(file: LakeFile, rows: pa.Table) -> Iterator[tuple[LakeFile, pa.Table]]:
    """A file for each hour: a later turn then replaces those of its own hours only."""
    for hour in pc.unique(rows["hour"]).to_pylist():
        yield replace(file, day=f"{hour:%Y-%m-%d}"), rows.filter(pc.equal(rows["hour"], hour))


def by_kind(file: LakeFile, rows: pa.Table) -> Iterator[tuple[LakeFile, pa.Table]]:
    """Intervals of streams and items of mailboxes apart: the bounds of both then say which ones are in a file."""
    items = pc.equal(rows["first"], 0)
    yield file, rows.filter(pc.invert(items))
    yield file, rows.filter(items)


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Reads data files in tasks, where Spark itself cannot open the store: rows of (location) → their rows."""

    store: FileStore
    names: tuple[str, ...]  # of columns
    name_as: str  # a column for the file's name; empty for none
    streams: tuple[str, ...] = ()  # rows of these only; empty: all
    columns: tuple[Column, ...] = ()  # of a typed table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for location in batch.column(0).to_pylist():
                for rows in read_batches(self.store, location, self.names, self.streams, columns=self.columns):
                    yield self._named(rows, location.rpartition("/")[2])

    def _named(self, rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
        if not self.name_as:
            return rows
        columns = [*rows.columns, pa.array([name] * rows.num_rows)]
        return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, self.name_as])
