"""Which files a table has, in some 40 bytes each: for jobs that look at all of them, however many there are.

The driver keeps what their names tell, as columns of Arrow, and hands groups of neighbours to tasks, which open them.
Neither it nor the JVM has an object for a file: Spark's own reader of Parquet has one, and its whole address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import read_batches
from penstock.iceberg.store import FileStore
from penstock.wire.lake_files import LakeFile, parse_location
from penstock.wire.table_columns import Column

NAMES: Final = pa.schema([("lo", pa.int64()), ("hi", pa.int64()), ("day", pa.date32()), ("unique", pa.utf8())])

_AT_ONCE: Final = 1_000
"""Files that are objects of Python's at a time."""

_BETWEEN: Final = " "
"""Stands between the files of a group, where a group is a text. No name has it."""


@dataclass(frozen=True, slots=True)
class FileList:
    """Files of one table, in order of the ids that they cover."""

    table: str
    names: pa.Table  # `NAMES`

    def __len__(self) -> int:
        return int(self.names.num_rows)

    def __iter__(self) -> Iterator[LakeFile]:
        for some in self.names.to_batches(max_chunksize=_AT_ONCE):
            days = pc.strftime(some["day"], "%Y-%m-%d").to_pylist()
            for lo, hi, day, unique in zip(some["lo"].to_pylist(), some["hi"].to_pylist(), days,
                                           some["unique"].to_pylist(), strict=True):  # fmt: skip
                yield LakeFile(lo, hi, day, self.table, unique)

    def between(self, after: int, upto: int) -> FileList:
        """Those that may hold something of the ids in (after, upto]."""
        found = pc.and_(pc.less(self.names["lo"], upto), pc.greater(self.names["hi"], after))
        return FileList(self.table, self.names.filter(found))

    def groups(self, count: int) -> list[str]:
        """Groups of neighbours, *count* of them or fewer: each a text for `OfEachFile`."""
        files, size = iter(self), max(1, -(-len(self) // max(1, count)))
        return [
            _BETWEEN.join(f"{one.lo:x}-{one.hi:x}-{one.day}-{one.unique}" for one in islice(files, size))
            for _ in range(-(-len(self) // size))
        ]


def list_files(store: FileStore, table: str, locations: Iterable[str]) -> FileList:
    """The files at *locations*, whose addresses are not kept: their names tell them."""
    pieces: list[pa.RecordBatch] = []
    files = (_named(store, table, location) for location in locations)
    while some := list(islice(files, _AT_ONCE)):
        days = pa.array([one.day for one in some]).cast(pa.date32())
        arrays = [pa.array([one.lo for one in some], pa.int64()), pa.array([one.hi for one in some], pa.int64())]
        pieces.append(
            pa.RecordBatch.from_arrays([*arrays, days, pa.array([one.unique for one in some], pa.utf8())], schema=NAMES)
        )
    order = [(name, "ascending") for name in NAMES.names]
    return FileList(table, pa.Table.from_batches(pieces, NAMES).sort_by(order))


def _named(store: FileStore, table: str, location: str) -> LakeFile:
    file = parse_location(location)
    if file is None or file.table != table or store.location(file.path) != location:
        raise ValueError(f"{location} is not named like a file of {table}")
    return file


@dataclass(frozen=True, slots=True)
class OfEachFile:
    """What a task does with rows of (group): *work* for each file of a group, one after the other."""

    table: str
    work: Callable[[LakeFile], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                for text in group.split(_BETWEEN):
                    yield from self.work(self._file(text))

    def _file(self, text: str) -> LakeFile:
        lo, hi, year, month, day, unique = text.split("-")
        return LakeFile(int(lo, 16), int(hi, 16), f"{year}-{month}-{day}", self.table, unique)


@dataclass(frozen=True, slots=True)
class RowsOfFile:
    """The rows of a file: `read_batches`."""

    store: FileStore
    names: tuple[str, ...]  # of columns
    streams: tuple[str, ...] = ()  # rows of these only; empty: all
    columns: tuple[Column, ...] = ()  # of a typed table

    def __call__(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        location = self.store.location(file.path)
        return read_batches(self.store, location, self.names, self.streams, columns=self.columns)
