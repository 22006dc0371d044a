"""Data files: Parquet with field ids, written once under a name that is never used twice.

Tasks on Spark's workers use this: it needs pyarrow alone. What a task gives back (`WrittenFile`) is all that the
driver needs for a commit; it never opens the file.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from penstock.errors import OperatorError
from penstock.iceberg.store import FileStore
from penstock.wire.lake_files import LakeFile, parse_location
from penstock.wire.table_columns import (
    TABLES,
    TIME,
    Column,
    decimal_size,
)

COMPRESSION: Final = "zstd"
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Of a row group, in memory. It is what a cold read opens: with the usual 128 MiB it would read a whole day."""

UNMEASURED: Final = ("body", "attributes")
"""Columns without bounds: nobody looks for a body by its order, and what was erased must not stay in a manifest."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that somebody has written. Its footer says what is in it."""

    location: str
    size: int
    footer: bytes  # of the Parquet file, whole, between its magic words
    rows: int

    @property
    def metadata(self) -> parquet.FileMetaData:
        """The footer, read."""
        return parquet.read_metadata(io.BytesIO(self.footer))


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file that a table names, and what the manifest says of its rows."""

    file: LakeFile  # what its name tells
    location: str
    size: int
    rows: int
    known: Mapping[str, tuple[Any, ...]]  # bounds by column

    def bounds(self, column: str) -> tuple[Any, ...]:
        """The least and the greatest value of a column; None where that is not known. Texts may be cut off."""
        return self.known.get(column, (None, None))


class WrittenWrong(OperatorError):
    """What was written is not what the plan says. Nothing was committed."""

    code = "written_wrong"
    remedy = "This is a defect: report it, with the driver's log."


def arrow_schema(table: str, columns: Sequence[Column] = ()) -> pa.Schema:
    """The schema of a table's files; *columns* are those of a typed one. Without field ids some readers see nulls."""
    return pa.schema(
        pa.field(column.name, arrow_type(column.type), metadata={"PARQUET:field_id": str(number)})
        for number, column in enumerate(columns or TABLES[table], 1)
    )


def arrow_type(type: str) -> pa.DataType:
    """The type of a column."""
    size = decimal_size(type)
    if size:
        return pa.decimal128(*size)
    return pa.timestamp("us", tz="UTC") if type == TIME else pa.type_for_alias(type)


def write_file(
    store: FileStore,
    file: LakeFile,
    batches: Iterable[pa.RecordBatch | pa.Table],
    columns: Sequence[Column] = (),
) -> WrittenFile | None:
    """Write *batches* as a new data file that is named like *file*; None, and no file, if there are no rows.

    *columns* are those of a typed table. Not durable on a folder before `FileStore.sync`.
    """
    columns = columns or TABLES[file.table]
    groups = _row_groups(arrow_schema(file.table, columns), iter(batches))
    first = next(groups, None)
    if first is None:
        return None
    path = replace(file, unique=secrets.token_hex(8)).path
    store.make_folder(path.rpartition("/")[0])
    footers: list[Any] = []
    with store.files.open_output_stream(store.place(path)) as stream:
        with parquet.ParquetWriter(stream, first.schema, metadata_collector=footers, **_writing(columns)) as writer:
            for group in chain((first,), groups):
                writer.write_table(group, row_group_size=max(1, group.num_rows))
        size = stream.tell()
    return WrittenFile(store.location(path), size, _footer(footers[0]), footers[0].num_rows)


def describe_file(store: FileStore, path: str) -> WrittenFile:
    """A data file that is there already, by its footer. `OSError` or `ValueError` if it is not whole."""
    with store.files.open_input_file(store.place(path)) as stream:
        size, found = stream.size(), parquet.read_metadata(stream)
    return WrittenFile(store.location(path), size, _footer(found), found.num_rows)


def checked(file: LakeFile, rows: int, written: WrittenFile | None) -> WrittenFile:
    """*written*, if it has as many rows as it must have."""
    found = written.rows if written else 0
    if written is None or found != rows:
        raise WrittenWrong(f"{found} rows of {file.table} were written, but ({file.lo}, {file.hi}] has {rows}")
    return written


def read_batches(
    store: FileStore,
    location: str,
    names: Sequence[str] = (),
    streams: Sequence[str] = (),
    *,
    columns: Sequence[Column] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of a data file, a row group at a time; the columns *names* or all. One that it does not have is null.

    With *streams*, those rows only whose column `stream`, which must be wanted, is one of them. *columns* are those of
    a typed table, in the types that they have now.
    """
    file = parse_location(location)
    table = file.table if file else ""
    schema = arrow_schema(table, columns) if columns or table in TABLES else None
    with store.files.open_input_file(store.place(store.relative(location))) as stream:
        opened = parquet.ParquetFile(stream)
        wanted = names or (schema.names if schema else opened.schema_arrow.names)
        for number in range(opened.num_row_groups):
            if streams and not _may_have(opened.metadata.row_group(number), streams):
                continue
            rows = opened.read_row_group(number, columns=list(wanted))
            if streams:
                rows = rows.filter(pc.is_in(rows["stream"], pa.array(streams)))
            for name in wanted:
                if schema and name not in rows.schema.names:
                    rows = rows.append_column(schema.field(name), pa.nulls(rows.num_rows, schema.field(name).type))
            rows = rows.select(list(wanted))
            yield from (rows.cast(pa.schema(map(schema.field, wanted))) if columns and schema else rows).to_batches()


def _may_have(group: parquet.RowGroupMetaData, streams: Sequence[str]) -> bool:
    """Whether a row group may have rows of *streams*, by its bounds."""
    columns = (group.column(number) for number in range(group.num_columns))
    bounds = next(one.statistics for one in columns if one.path_in_schema == "stream")
    return bounds is None or not bounds.has_min_max or any(bounds.min <= one <= bounds.max for one in streams)


def _footer(metadata: parquet.FileMetaData) -> bytes:
    footer = io.BytesIO()
    metadata.write_metadata_file(footer)
    return footer.getvalue()


def _writing(columns: Sequence[Column]) -> dict[str, Any]:
    return {
        "compression": COMPRESSION,
        # Values that hardly ever come twice fill a dictionary for nothing, and bodies make long statistics.
        "use_dictionary": [column.name for column in columns if column.repeats],
        "write_statistics": [column.name for column in columns if column.name not in UNMEASURED],
        # A file must not tell by whom it was written: pyarrow would read its own types back instead of Parquet's.
        "store_schema": False,
        "store_decimal_as_integer": True,  # as Iceberg wants decimals of up to 18 digits
    }


def _row_groups(schema: pa.Schema, batches: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    """Batches joined to row groups of `GROUP_BYTES`. What is in memory is one of them."""
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        held.append(rows.select(schema.names).cast(schema))
        size += rows.nbytes
        if size >= GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
