"""The tables as Iceberg knows them: schemas with fixed field ids, partitions, properties.

They follow from `wire/table_columns.py`. A column that is added there, at the end, is a column of the table from the
next commit on; files from before it read as null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from penstock.iceberg.files import UNMEASURED
from penstock.wire.lake_files import TYPED
from penstock.wire.table_columns import (
    BOOL,
    BYTES,
    DATE,
    DOUBLE,
    INT32,
    INT64,
    TEXT,
    TIME,
    Column,
    decimal_size,
)

DAY_OF: Final = {"events": "time", "rollup_hourly": "hour"}
"""Tables that are partitioned by the day of a column, and the column. Typed tables are, by `time`.

The others are not: a record of the ledger may come long after what it speaks of, so a turn's rows have many days. Their
files are found by the bounds of their columns.
"""

_TYPES: Final[dict[str, IcebergType]] = {
    INT64: LongType(),
    INT32: IntegerType(),
    TEXT: StringType(),
    TIME: TimestamptzType(),
    BYTES: BinaryType(),
    BOOL: BooleanType(),
    DOUBLE: DoubleType(),
    DATE: DateType(),
}
_PARTITION_FIELD: Final = 1000  # Iceberg's own rule: ids of partition fields begin here


def schema_of(columns: Sequence[Column]) -> Schema:
    """A table's columns. The field id of a column is its place, from 1 on."""
    fields = (
        NestedField(number, column.name, _type(column), required=False, doc=column.meaning)
        for number, column in enumerate(columns, 1)
    )
    return Schema(*fields)


def _type(column: Column) -> IcebergType:
    size = decimal_size(column.type)
    return DecimalType(*size) if size else _TYPES[column.type]


def partitions_of(table: str, columns: Sequence[Column]) -> PartitionSpec:
    """How a table's files are parted."""
    day_of = "time" if table.startswith(TYPED) else DAY_OF.get(table)
    if day_of is None:
        return UNPARTITIONED_PARTITION_SPEC
    source = schema_of(columns).find_field(day_of).field_id
    return PartitionSpec(
        PartitionField(source_id=source, field_id=_PARTITION_FIELD, transform=DayTransform(), name="day")
    )


def properties_of(columns: Sequence[Column]) -> dict[str, str]:
    """What a table says of itself. The mapping of names is for files that have no field ids."""
    names = [{"field-id": number, "names": [column.name]} for number, column in enumerate(columns, 1)]
    unmeasured = [column.name for column in columns if column.name in UNMEASURED]
    return {
        "format-version": "2",
        "schema.name-mapping.default": json.dumps(names, separators=(",", ":")),
        "write.parquet.compression-codec": "zstd",
        **{f"write.metadata.metrics.column.{name}": "none" for name in unmeasured},
    }
