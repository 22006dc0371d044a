"""Rows of typed tables: made of files of `events`, and taken out of files again. Each within a task.

Neither needs Spark's frames: bodies go from one Parquet file to another in the task's own process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.core.matching import matches
from penstock.iceberg.files import PlannedFile, WrittenFile, arrow_schema, read_batches, write_file
from penstock.iceberg.store import FileStore
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import Column
from penstock.wire.typed_tables import OWN, BodyMisfit, BodyReader, TypedTable

_READ: Final = ("id", "stream", "time", "kind", "body")
_UNREADABLE: Final = arrow_schema("unreadable")


def may_be_in(streams: Sequence[str], planned: PlannedFile) -> bool:
    """Whether a file of `events` may have entries of streams that these patterns match, by its bounds."""
    least, most = planned.bounds("stream")
    beginnings = (re.split("[*>]", one)[0] for one in streams)
    return any((most is None or one <= most) and (least is None or least[: len(one)] <= one) for one in beginnings)


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """What a task has made of a file of `events`."""

    rows: WrittenFile | None
    unreadable: WrittenFile | None


@dataclass(frozen=True, slots=True)
class DecodeFile:
    """What one task does: make rows of a typed table from the entries of a file with ids in (lo, hi]."""

    store: FileStore
    source: str  # a location
    table: TypedTable
    file: LakeFile

    def run(self) -> DecodedFile:
        """Write the rows, and what does not fit."""
        misfits: list[pa.RecordBatch] = []
        rows = write_file(self.store, self.file, self._rows(misfits), self.table.all_columns)
        return DecodedFile(rows, write_file(self.store, replace(self.file, table="unreadable"), misfits))

    def _rows(self, misfits: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, some at a time. What does not fit is added to *misfits*."""
        made = RowMaker(self.table)
        for batch in read_batches(self.store, self.source, _READ):
            inside = pc.and_(pc.greater(batch["id"], self.file.lo), pc.less_equal(batch["id"], self.file.hi))
            rows, bad = made.rows(batch.filter(pc.and_(inside, made.is_wanted(batch))))
            misfits += [bad] if bad.num_rows else []
            yield rows


@dataclass(slots=True)
class RowMaker:
    """Makes rows of entries."""

    table: TypedTable
    known: dict[str, bool] = field(default_factory=dict)  # whether a stream is one of the table's

    def is_wanted(self, entries: pa.RecordBatch) -> Any:
        """Which of *entries* (stream, kind) the table has a row for, as a mask."""
        streams = entries["stream"]
        found = pc.unique(streams).to_pylist()
        for stream in (one for one in found if one not in self.known):
            self.known[stream] = any(matches(pattern, stream) for pattern in self.table.streams)
        matching = pc.is_in(streams, pa.array([one for one in found if self.known[one]], streams.type))
        return pc.and_(matching, pc.equal(entries["kind"], "data"))

    def rows(self, entries: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Rows of the table, and rows of `unreadable`."""
        read, fits, values, bad = BodyReader(self.table.columns).read, [], [], []
        for number, body in enumerate(entries["body"].to_pylist()):
            try:
                values.append(read(body or b""))
                fits.append(number)
            except BodyMisfit as misfit:
                bad.append((number, len(body or b""), misfit.reason, misfit.path))
        kept = entries.take(pa.array(fits, pa.int64()))
        schema = arrow_schema("", self.table.all_columns)
        declared = list(zip(*values, strict=True)) if values else [()] * len(self.table.columns)
        columns = [pa.array(one, kind.type) for one, kind in zip(declared, list(schema)[len(OWN) :], strict=True)]
        own = [kept[column.name].cast(schema.field(column.name).type) for column in OWN]
        return pa.RecordBatch.from_arrays([*own, *columns], schema=schema), self._unreadable(entries, bad)

    def _unreadable(self, entries: pa.RecordBatch, bad: Sequence[tuple[int, int, str, str]]) -> pa.RecordBatch:
        numbers, sizes, reasons, paths = zip(*bad, strict=True) if bad else ((), (), (), ())
        found = entries.take(pa.array(numbers, pa.int64()))
        columns = {
            "entry": found["id"], "stream": found["stream"].cast(pa.utf8()), "reason": pa.array(reasons, pa.utf8()),
            "bytes": pa.array(sizes, pa.int64()), "typed_table": pa.array([self.table.name] * len(bad), pa.utf8()),
            "path": pa.array(paths, pa.utf8()),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays([columns[name] for name in _UNREADABLE.names], schema=_UNREADABLE)


@dataclass(frozen=True, slots=True)
class RemoveRows:
    """What one task does: write a file again without some of its rows."""

    store: FileStore
    file: PlannedFile
    columns: Sequence[Column]
    which: Callable[[pa.RecordBatch], Any]  # a mask

    def run(self) -> tuple[int, WrittenFile | None]:
        """How many rows go, and the file without them; none if no row goes, or if none is left."""
        found = sum(pc.sum(self.which(batch)).as_py() or 0 for batch in self._batches())
        if not found or found == self.file.rows:
            return found, None
        left = (batch.filter(pc.invert(self.which(batch))) for batch in self._batches())
        return found, write_file(self.store, self.file.file, left, self.columns)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return read_batches(self.store, self.file.location, columns=self.columns)
