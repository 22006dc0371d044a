"""Entries as Arrow: the schema of an export, its framing, and its end.

A stream is a schema message, record batches, one empty batch whose custom metadata are `rows` and `upto`,
and the end marker. A stream that was cut between two messages reads like a shorter one, so a reader that
has not seen that empty batch must fail. There are no dictionaries, and every field may be null.

This module loads pyarrow; import it only where something is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.values import Entry, Kind
from penstock.wire.table_columns import EVENT, NAMES, SCHEMA_VERSION, TEXT, TIME, Column

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one record batch at most: what a reader must be able to hold. Larger ones are split."""

KIND_NAMES: Final = tuple(kind.name.lower() for kind in Kind)
_FRAME_BYTES: Final = 64 * 1024  # of a message: its metadata and the padding of its buffers


def _type_of(column: Column) -> Any:
    return pa.timestamp("us", tz="UTC") if column.type == TIME else pa.type_for_alias(column.type)


TYPES: Final = {column.name: _type_of(column) for column in EVENT}


def _value_of(column: Column) -> Callable[[Entry], object]:
    """How a column's value is taken from an entry."""
    special: dict[str, Callable[[Entry], object]] = {
        "kind": lambda entry: KIND_NAMES[entry.kind],
        "body": lambda entry: None if entry.kind in (Kind.EXPIRED, Kind.ERASED) else entry.body,
        "schema_version": lambda entry: SCHEMA_VERSION,
    }
    if column.name in special:
        return special[column.name]
    plain = attrgetter(column.field)
    if column.type == TIME:
        return lambda entry: None if (ms := plain(entry)) is None else ms * 1000
    return (lambda entry: plain(entry) or None) if column.type == TEXT else plain


_VALUES: Final = {column.name: _value_of(column) for column in EVENT}


def schema(columns: Sequence[str] = NAMES) -> Any:
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
