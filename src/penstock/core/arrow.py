"""Entries as Arrow: the schema of an export, its framing, and its end.

A stream is a schema message, record batches, one empty batch whose custom metadata are `rows` and `upto`,
and the end marker. A stream that was cut between two messages reads like a shorter one, so a reader that
has not seen that empty batch must fail. There are no dictionaries, and every field may be null.

This module loads pyarrow; import it only where something is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.core.export import BATCH_BYTES, COLUMNS
from penstock.values import Entry, Kind

SCHEMA_VERSION: Final = 1
KIND_NAMES: Final = tuple(kind.name.lower() for kind in Kind)
_TIME: Final = pa.timestamp("us", tz="UTC")
_FRAME_BYTES: Final = 64 * 1024  # of a message: its metadata and the padding of its buffers

TYPES: Final[dict[str, Any]] = {
    "id": pa.int64(), "stream": pa.utf8(), "index": pa.int64(), "chunk": pa.int64(), "offset": pa.int64(),
    "size": pa.int64(), "kind": pa.utf8(), "type": pa.utf8(), "time": _TIME, "expires_at": _TIME,
    "attributes": pa.utf8(), "body": pa.binary(), "schema_version": pa.int32(),
}  # fmt: skip

_VALUES: Final[dict[str, Callable[[Entry], object]]] = {
    "id": lambda entry: entry.id,
    "stream": lambda entry: entry.stream,
    "index": lambda entry: entry.index,
    "chunk": lambda entry: entry.chunk,
    "offset": lambda entry: entry.offset,
    "size": lambda entry: entry.size,
    "kind": lambda entry: KIND_NAMES[entry.kind],
    "type": lambda entry: entry.type or None,
    "time": lambda entry: entry.published_ms * 1000,
    "expires_at": lambda entry: None if entry.expires_ms is None else entry.expires_ms * 1000,
    "attributes": lambda entry: entry.attributes or None,
    "body": lambda entry: None if entry.kind in (Kind.EXPIRED, Kind.ERASED) else entry.body,
    "schema_version": lambda entry: SCHEMA_VERSION,
}


def schema(columns: Sequence[str] = COLUMNS) -> Any:
    """The schema of an export with these columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def batch_of(entries: Sequence[Entry], columns: Sequence[str]) -> Any:
    """A record batch of entries."""
    arrays = [pa.array([_VALUES[name](entry) for entry in entries], TYPES[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(columns))


def split(batch: Any, limit_bytes: int = BATCH_BYTES - _FRAME_BYTES) -> Iterator[Any]:
    """*batch*, or pieces of it that each fit into a message of the allowed size."""
    if batch.nbytes <= limit_bytes or batch.num_rows == 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from split(batch.slice(0, half), limit_bytes)
        yield from split(batch.slice(half), limit_bytes)


def opening(columns: Sequence[str]) -> bytes:
    """The schema message."""
    return bytes(schema(columns).serialize())


def message(batch: Any) -> Any:
    """The message of a batch, as a buffer."""
    return batch.serialize()


def closing(columns: Sequence[str], rows: int, upto: int) -> bytes:
    """The empty batch that says what came before it, and the end marker."""
    wanted = schema(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wanted) as writer:
        nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in wanted], schema=wanted)
        writer.write_batch(nothing, custom_metadata={"rows": str(rows), "upto": str(upto)})
    return bytes(sink.getvalue()).removeprefix(opening(columns))
