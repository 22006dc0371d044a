"""Sums over one file of `events`, for the audit: made by a task, kept beside the tables.

One row for each stream and chunk in the file. That is little however many events there are, and as files never change
each is summed up once. The driver sees none of it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from penstock.iceberg.files import arrow_schema, read_batches
from penstock.iceberg.store import FileStore

SUMS: Final = (
    "file STRING, stream STRING, chunk BIGINT, rows BIGINT, ids BIGINT, first_id BIGINT, last_id BIGINT, "
    "first_index BIGINT, last_index BIGINT, indexes BIGINT, begin BIGINT, end BIGINT, bytes BIGINT"
)
_READ: Final = ("id", "stream", "chunk", "index", "offset", "size")
_AGGREGATES: Final = {
    "rows": ("id", "count"),
    "ids": ("id", "count_distinct"),
    "first_id": ("id", "min"),
    "last_id": ("id", "max"),
    "first_index": ("index", "min"),
    "last_index": ("index", "max"),
    "indexes": ("index", "count_distinct"),
    "begin": ("begin", "min"),
    "end": ("end", "max"),
    "bytes": ("size", "sum"),
}


@dataclass(frozen=True, slots=True)
class SumUpFile:
    """What one task does: sum up a file."""

    store: FileStore
    location: str
    path: str  # where the sums are to be

    def run(self) -> None:
        """Store the sums, whole or not at all."""
        batches = list(read_batches(self.store, self.location, _READ))
        rows = pa.Table.from_batches(batches) if batches else arrow_schema("events").empty_table()
        stream = io.BytesIO()
        parquet.write_table(sum_up(rows, self.location.rpartition("/")[2]), stream)
        self.store.put(self.path, stream.getvalue())


def sum_up(rows: pa.Table, file: str) -> pa.Table:
    """The sums of *rows* (id, stream, chunk, index, offset, size), as `SUMS` has them."""
    begin = pc.if_else(pc.greater(rows["size"], 0), rows["offset"], pa.scalar(None, pa.int64()))
    lines = rows.append_column("begin", begin).append_column("end", pc.add(begin, rows["size"]))
    found = lines.group_by(["stream", "chunk"]).aggregate([*dict.fromkeys(_AGGREGATES.values())])
    names = pa.array([file] * found.num_rows, pa.utf8())
    sums = [found[f"{column}_{function}"].cast(pa.int64()) for column, function in _AGGREGATES.values()]
    return pa.table([names, found["stream"], found["chunk"], *sums], ["file", "stream", "chunk", *_AGGREGATES])
