"""What was erased, and rows without it.

An entry that is erased stays in its place: its row keeps the id, stream, index and byte range, and loses its type,
attributes and body, as the log's own tombstone does.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import PlannedFile, WrittenFile, checked, read_batches, write_file
from penstock.iceberg.store import FileStore
from penstock.wire.lake_files import LakeFile

STREAM: Final = "/_erased"
"""Where the server says what was erased."""

ERASED: Final = "erased"
_LIVE: Final = pa.array(["data", "part"])
_EMPTIED: Final = ("type", "attributes", "body")


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What must not be read any more: these entries, and those of streams up to an id."""

    ids: tuple[int, ...]  # in order
    streams: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.ids or self.streams)

    def may_be_in(self, planned: PlannedFile) -> bool:
        """Whether a file may have any of it, by its name and its bounds."""
        file, (least, greatest) = planned.file, planned.bounds("stream")
        streams = [stream for stream, upto in self.streams.items() if file.lo < upto]
        if any((least is None or least <= one) and (greatest is None or one <= greatest) for one in streams):
            return True
        return bool(self._ids_in(file))

    def part_in(self, file: LakeFile) -> ErasedRows:
        """What of it a file may have, by its name: a task is given no more."""
        return ErasedRows(self._ids_in(file), {stream: upto for stream, upto in self.streams.items() if file.lo < upto})

    def _ids_in(self, file: LakeFile) -> tuple[int, ...]:
        return self.ids[bisect_right(self.ids, file.lo) : bisect_right(self.ids, file.hi)]

    def count_in(self, rows: pa.RecordBatch) -> int:
        """How many of *rows* have what must go."""
        return int(pc.sum(self.within(rows)).as_py() or 0)

    def within(self, rows: pa.RecordBatch) -> Any:
        """Which of *rows* (id, stream, kind) still have what must go, as a mask."""
        return pc.fill_null(pc.and_(self.named(rows), pc.is_in(rows["kind"], _LIVE)), False)

    def named(self, rows: pa.RecordBatch) -> Any:
        """Which of *rows* (id, stream) must go, as a mask."""
        found = pc.is_in(rows["id"], pa.array(self.ids, pa.int64()))
        for stream, upto in self.streams.items():
            of_stream = pc.and_(pc.equal(rows["stream"], stream), pc.less_equal(rows["id"], upto))
            found = pc.or_(found, of_stream)
        return found


def gone(requests: Iterable[bytes]) -> ErasedRows:
    """What the entries of `/_erased` ask for."""
    ids: set[int] = set()
    streams: dict[str, int] = {}
    for body in requests:
        try:
            wanted, stream, upto = read_request(body)
        except ValueError:
            continue  # it is in the table `unreadable`, with the reason; all others are done
        ids.update(wanted)
        if stream:
            streams[stream] = max(upto, streams.get(stream, 0))
    return ErasedRows(tuple(sorted(ids)), streams)


def read_request(body: bytes) -> tuple[list[int], str, int]:
    """What one entry of `/_erased` asks for: ids, or all of a stream up to an id. `ValueError` if it is none."""
    try:
        said = json.loads(body)
        ids, stream, upto = said.get("ids", []), said.get("stream", ""), said.get("upto", 0)
        stream.encode()
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"no request to erase: {type(error).__name__} {error}") from error
    numbers = [*ids, upto] if isinstance(ids, list) else [None]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("no request to erase: an id is no number")
    return ids, stream, upto


def requests_in(rows: pa.RecordBatch, after: int, upto: int) -> Iterator[bytes]:
    """The entries of `/_erased` among *rows*, with ids in (after, upto]."""
    inside = pc.and_(pc.greater(rows["id"], after), pc.less_equal(rows["id"], upto))
    said = pc.and_(pc.equal(rows["stream"], STREAM), pc.equal(rows["kind"], "data"))
    yield from rows.filter(pc.and_(inside, said))["body"].to_pylist()


def emptied(rows: pa.RecordBatch, what: ErasedRows) -> pa.RecordBatch:
    """*rows* with tombstones in the place of what must go."""
    mask = what.within(rows)
    rows = _with(rows, "kind", pc.if_else(mask, ERASED, rows["kind"]))
    for name in _EMPTIED:
        rows = _with(rows, name, pc.if_else(mask, pa.scalar(None, rows[name].type), rows[name]))
    return rows


def _with(rows: pa.RecordBatch, name: str, column: Any) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)


@dataclass(frozen=True, slots=True)
class FindRequests:
    """What one task does: find the requests with ids in (after, upto] in a file."""

    store: FileStore
    location: str
    after: int
    upto: int

    def run(self) -> list[bytes]:
        """The bodies of the requests."""
        rows = read_batches(self.store, self.location, ("id", "stream", "kind", "body"), (STREAM,))
        return [body for batch in rows for body in requests_in(batch, self.after, self.upto)]


@dataclass(frozen=True, slots=True)
class EraseFrom:
    """What one task does: write a file again without what was erased."""

    store: FileStore
    file: PlannedFile
    what: ErasedRows

    def run(self) -> tuple[int, WrittenFile | None]:
        """How many rows lose something, and the file without it; none if there are no such rows."""
        columns = read_batches(self.store, self.file.location, ("id", "stream", "kind"))
        found = sum(self.what.count_in(batch) for batch in columns)
        if not found:
            return 0, None
        rows = (emptied(batch, self.what) for batch in read_batches(self.store, self.file.location))
        return found, checked(self.file.file, self.file.rows, write_file(self.store, self.file.file, rows))
