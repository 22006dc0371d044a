"""Tables with one row for each key: new rows are merged with those that are there, in the files that have them.

A turn rewrites the files that hold any of its keys, and no other. Which ones that may be is told by the bounds in the
manifests; if that is much, the keys in them are compared. So one late record makes nobody read the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.iceberg.files import PlannedFile
from penstock.pipeline.commit import Intent, TableChange, Turn
from penstock.pipeline.jobs import Workplace
from penstock.pipeline.writing import Split, write_frame
from penstock.wire.lake_files import LakeFile

SURELY_BYTES: Final = 1024 * 1024
"""Files that are no larger, all together, are rewritten without a closer look at what is in them."""


@dataclass(frozen=True, slots=True)
class MergedTable:
    """How a table keeps one row for each key."""

    name: str
    keys: tuple[str, ...]
    ranges: tuple[str, ...]  # those of the keys whose bounds tell files apart
    merge: Callable[[DataFrame], DataFrame]
    order: tuple[str, ...]  # of the rows within a file
    split: Split | None = None


def merge_into(
    place: Workplace, turn: Turn, table: MergedTable, fresh: DataFrame, intent: Intent, made_of: int
) -> TableChange:
    """Merge *fresh* rows, which have each key once, into *table*. They are *made_of* so many rows."""
    files = turn.table(table.name).files()
    if sum(one.size for one in files) <= SURELY_BYTES:
        return _merged(place, table, files, fresh, intent, made_of)
    with place.shuffling(made_of):
        fresh = fresh.cache()
        likely = touched(place, files, table, fresh)
    try:
        return _merged(place, table, likely, fresh, intent, made_of)
    finally:
        fresh.unpersist()


def _merged(
    place: Workplace, table: MergedTable, files: Sequence[PlannedFile], fresh: DataFrame, intent: Intent, made_of: int
) -> TableChange:
    """New files in the place of *files*."""
    place.lake.check(files)
    rows = table.merge(place.read(table.name, files).unionByName(fresh)) if files else fresh
    lo = min([intent.after, *(one.file.lo for one in files)])
    name = LakeFile(lo, intent.upto, intent.slices[-1].day, table.name)
    with place.shuffling(made_of + sum(one.rows for one in files)):
        written = write_frame(rows.sortWithinPartitions(*table.order), place.lake.store, [name], table.split)
    return TableChange(table.name, written, [one.location for one in files])


def touched(place: Workplace, files: Sequence[PlannedFile], table: MergedTable, fresh: DataFrame) -> list[PlannedFile]:
    """Those of *files* that have any of the keys of *fresh*."""
    bounds = [[file.bounds(column) for column in table.ranges] for file in files]
    numbers = fresh.select(*table.ranges).mapInArrow(_MayHold(bounds), "number INT").distinct().collect()
    likely = [files[row.number] for row in numbers]
    if sum(one.size for one in likely) <= SURELY_BYTES:
        return likely
    held = place.read(table.name, likely, *table.keys, name_as="file")
    same = [F.col(f"held.{key}").eqNullSafe(F.col(f"fresh.{key}")) for key in table.keys]
    rows = held.alias("held").join(F.broadcast(fresh.select(*table.keys).alias("fresh")), same, "left_semi")
    names = {row.file for row in rows.select("file").distinct().collect()}
    return [one for one in likely if one.file.name in names]


@dataclass(frozen=True, slots=True)
class _MayHold:
    """The numbers of the files whose bounds do not rule a row out. Rows stay in Spark's workers."""

    bounds: list[list[tuple[Any, Any]]]

    def __call__(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            found = [number for number, ranges in enumerate(self.bounds) if piece.num_rows and _any(piece, ranges)]
            yield pa.RecordBatch.from_arrays([pa.array(found, pa.int32())], names=["number"])


def _any(rows: pa.RecordBatch, ranges: list[tuple[Any, Any]]) -> bool:
    inside = pa.array([True] * rows.num_rows)
    for column, (least, greatest) in zip(rows.columns, ranges, strict=True):
        if least is not None:
            inside = pc.and_(inside, pc.greater_equal(column, pa.scalar(least, column.type)))
        if greatest is not None:
            inside = pc.and_(inside, pc.less_equal(column, pa.scalar(greatest, column.type)))
    return bool(pc.any(pc.fill_null(inside, True)).as_py())
