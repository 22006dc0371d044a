"""The tables as Iceberg knows them: schemas with fixed field ids, partitions, properties.

They follow from `wire/columns.py`. A column that is added there, at the end, is a column of the table from the next
commit on; files from before it read as null.
"""

from __future__ import annotations

import json
from typing import Final

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from penstock.iceberg.files import UNMEASURED
from penstock.wire.columns import BYTES, INT32, INT64, TABLES, TEXT, TIME

DAY_OF: Final = {"events": "time", "rollup_hourly": "hour"}
"""Tables that are partitioned by the day of a column, and the column.

The others are not: a record of the ledger may come long after what it speaks of, so a turn's rows have many days. Their
files are found by the bounds of their columns.
"""

_TYPES: Final[dict[str, IcebergType]] = {
    INT64: LongType(),
    INT32: IntegerType(),
    TEXT: StringType(),
    TIME: TimestamptzType(),
    BYTES: BinaryType(),
}
_PARTITION_FIELD: Final = 1000  # Iceberg's own rule: ids of partition fields begin here


def schema_of(table: str) -> Schema:
    """A table's columns. The field id of a column is its place, from 1 on."""
    fields = (
        NestedField(number, column.name, _TYPES[column.type], required=False, doc=column.meaning)
        for number, column in enumerate(TABLES[table], 1)
    )
    return Schema(*fields)


def partitions_of(table: str) -> PartitionSpec:
    """How a table's files are parted."""
    if table not in DAY_OF:
        return UNPARTITIONED_PARTITION_SPEC
    source = schema_of(table).find_field(DAY_OF[table]).field_id
    return PartitionSpec(
        PartitionField(source_id=source, field_id=_PARTITION_FIELD, transform=DayTransform(), name="day")
    )


def properties_of(table: str) -> dict[str, str]:
    """What a table says of itself. The mapping of names lets every reader read files that have no field ids."""
    names = [{"field-id": number, "names": [column.name]} for number, column in enumerate(TABLES[table], 1)]
    unmeasured = [column.name for column in TABLES[table] if column.name in UNMEASURED]
    return {
        "format-version": "2",
        "schema.name-mapping.default": json.dumps(names, separators=(",", ":")),
        "write.parquet.compression-codec": "zstd",
        **{f"write.metadata.metrics.column.{name}": "none" for name in unmeasured},
    }
