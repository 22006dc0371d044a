"""Sums over one file of `events`, for the audit: made by a task, kept beside the tables.

    events/data/day=2026-11-15/e-<lo>-<hi>-<unique>.parquet     a file
    _audit/day=2026-11-15/e-<lo>-<hi>-<unique>.parquet          its sums, and of which bytes they are

One row for each stream and chunk in the file. That is little however many events there are, and as files never change
each is summed up once. The driver sees none of it: a task finds the sums by the file's name, or makes them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from penstock.iceberg.files import arrow_schema, read_batches
from penstock.iceberg.store import FileStore, StoredFile
from penstock.wire.lake_files import LakeFile

FOLDER: Final = "_audit"
"""Where the sums are, so that an audit reads each file once."""

SUMS: Final = (
    "file STRING, stream STRING, chunk BIGINT, rows BIGINT, ids BIGINT, first_id BIGINT, last_id BIGINT, "
    "first_index BIGINT, last_index BIGINT, indexes BIGINT, begin BIGINT, end BIGINT, bytes BIGINT"
)
_NAMES: Final = tuple(one.split()[0] for one in SUMS.split(", "))
_BYTES: Final = b"penstock.bytes"  # in the sums' metadata: the time and size of the file that they are of
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
class SumsOfFile:
    """What a task does with a file: give its sums, which an earlier audit may have made.

    A file that is gone has one row: its path, and nothing else.
    """

    store: FileStore
    afresh: bool = False  # read each file again

    def __call__(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        found = self.store.find(file.path)
        if found is None:
            nothing = [pa.nulls(1, pa.utf8()), *(pa.nulls(1, pa.int64()) for _ in _NAMES[2:])]
            yield pa.RecordBatch.from_arrays([pa.array([file.path]), *nothing], list(_NAMES))
            return
        path = f"{FOLDER}/day={file.day}/{file.name}"
        kept = None if self.afresh else self._kept(path, found)
        yield from (kept or self._made(path, found)).to_batches()

    def _kept(self, path: str, found: StoredFile) -> pa.Table | None:
        """The sums that are there, if they are of these very bytes."""
        try:
            kept = parquet.read_table(io.BytesIO(self.store.read(path)))
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        is_own = (kept.schema.metadata or {}).get(_BYTES) == _bytes_of(found)
        return kept if is_own and tuple(kept.schema.names) == _NAMES else None

    def _made(self, path: str, found: StoredFile) -> pa.Table:
        batches = list(read_batches(self.store, self.store.location(found.path), _READ))
        rows = pa.Table.from_batches(batches) if batches else arrow_schema("events").empty_table()
        sums = sum_up(rows, path.rpartition("/")[2]).replace_schema_metadata({_BYTES: _bytes_of(found)})
        stream = io.BytesIO()
        parquet.write_table(sums, stream)
        self.store.put(path, stream.getvalue())
        return sums


def _bytes_of(found: StoredFile) -> bytes:
    """Tells whether somebody has put other bytes under the file's name."""
    return b"%x-%x" % (int(found.modified * 1000), found.size)


@dataclass(frozen=True, slots=True)
class RemoveSums:
    """What one task does: remove the sums of files that are gone, of some days."""

    store: FileStore
    days: Sequence[str]  # as their folders are called

    def run(self) -> int:
        """Returns how many were removed."""
        return sum(map(self._remove, self.days))

    def _remove(self, day: str) -> int:
        files = {one.path.rpartition("/")[2] for one in self.store.list(f"events/data/{day}")}
        sums = self.store.list(f"{FOLDER}/{day}")
        return self.store.delete([one.path for one in sums if one.path.rpartition("/")[2] not in files])


def sum_up(rows: pa.Table, file: str) -> pa.Table:
    """The sums of *rows* (id, stream, chunk, index, offset, size), as `SUMS` has them."""
    begin = pc.if_else(pc.greater(rows["size"], 0), rows["offset"], pa.scalar(None, pa.int64()))
    lines = rows.append_column("begin", begin).append_column("end", pc.add(begin, rows["size"]))
    found = lines.group_by(["stream", "chunk"]).aggregate([*dict.fromkeys(_AGGREGATES.values())])
    names = pa.array([file] * found.num_rows, pa.utf8())
    sums = [found[f"{column}_{function}"].cast(pa.int64()) for column, function in _AGGREGATES.values()]
    return pa.table([names, found["stream"], found["chunk"], *sums], ["file", "stream", "chunk", *_AGGREGATES])
