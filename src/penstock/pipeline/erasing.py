"""What was erased, and files without it: pure Arrow, no Spark.

An entry that is erased stays in its place: its row keeps the id, stream, index and byte range, and loses its type,
attributes and body, as the log's own tombstone does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from penstock.pipeline.copying import write
from penstock.wire.lake import LakeFile

STREAM: Final = "/_erased"
"""Where the server says what was erased."""

ERASED: Final = "erased"
_LIVE: Final = pa.array(["data", "part"])
_EMPTIED: Final = ("type", "attributes", "body")


@dataclass(frozen=True, slots=True)
class Gone:
    """What must not be read any more: these entries, and those of streams up to an id."""

    ids: frozenset[int]
    streams: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.ids or self.streams)

    def may_be_in(self, file: LakeFile) -> bool:
        """Whether a file may have any of it, by its name."""
        if any(file.lo < upto for upto in self.streams.values()):
            return True
        return any(file.lo < id <= file.hi for id in self.ids)

    def within(self, rows: pa.Table) -> Any:
        """Which of *rows* (id, stream, kind) still have what must go, as a mask."""
        found = pc.is_in(rows["id"], pa.array(sorted(self.ids), pa.int64()))
        for stream, upto in self.streams.items():
            of_stream = pc.and_(pc.equal(rows["stream"], stream), pc.less_equal(rows["id"], upto))
            found = pc.or_(found, of_stream)
        return pc.fill_null(pc.and_(found, pc.is_in(rows["kind"], _LIVE)), False)


def gone(requests: Iterable[bytes]) -> Gone:
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
    return Gone(frozenset(ids), streams)


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


def requests_in(path: Path, after: int, upto: int) -> Iterator[bytes]:
    """The entries of `/_erased` in a file, with ids in (after, upto]. Most row groups are passed over unread."""
    file = parquet.ParquetFile(path)
    for number in range(file.num_row_groups):
        if not _may_have(file, number, STREAM):
            continue
        rows = file.read_row_group(number, columns=["id", "stream", "kind", "body"])
        inside = pc.and_(pc.greater(rows["id"], after), pc.less_equal(rows["id"], upto))
        said = pc.and_(pc.equal(rows["stream"], STREAM), pc.equal(rows["kind"], "data"))
        yield from rows.filter(pc.and_(inside, said))["body"].to_pylist()


def _may_have(file: Any, group: int, stream: str) -> bool:
    statistics = file.metadata.row_group(group).column(file.schema_arrow.get_field_index("stream")).statistics
    return not (statistics and statistics.has_min_max) or bool(statistics.min <= stream <= statistics.max)


def rows_with(path: Path, what: Gone) -> int:
    """How many rows of a file have what must go."""
    file = parquet.ParquetFile(path)
    groups = (file.read_row_group(number, columns=["id", "stream", "kind"]) for number in range(file.num_row_groups))
    return sum(pc.sum(what.within(group)).as_py() or 0 for group in groups)


def write_without(source: Path, target: Path, what: Gone) -> None:
    """Copy a file, with tombstones in the place of what must go. A row group at a time is in memory."""
    file = parquet.ParquetFile(source)
    write(target, _emptied(file, what))


def _emptied(file: Any, what: Gone) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_row_groups):
        rows = file.read_row_group(number)
        mask = what.within(rows)
        rows = _with(rows, "kind", pc.if_else(mask, ERASED, rows["kind"]))
        for name in _EMPTIED:
            rows = _with(rows, name, pc.if_else(mask, pa.scalar(None, rows[name].type), rows[name]))
        yield from rows.to_batches()


def _with(rows: pa.Table, name: str, column: Any) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
