"""The columns of an event, declared once.

The Arrow schema of the export (`core/arrow.py`), its SQL (`engines/sqlite/export_pages.py`), Spark's DDL and the lake's
files (`pipeline/tables.py`), the rows that are read back from them (`engines/lake/rows.py`) and the table in
docs/export.md follow from this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

INT64, INT32, TEXT, TIME, BYTES = "int64", "int32", "utf8", "timestamp[us, UTC]", "binary"


@dataclass(frozen=True, slots=True)
class Column:
    """One of them. In Arrow and Parquet every column may be null; `nullable` says whether it ever is."""

    name: str
    type: str
    nullable: bool
    field: str  # of `values.Entry`; empty for what is the same for every entry
    sql: str  # the column of the SQLite engine's table; empty if there is none
    meaning: str
    repeats: bool = False  # neighbours often have the same value: a dictionary pays


EVENT: Final = (
    Column("id", INT64, False, "id", "id", "the order within the whole log; it may skip numbers"),
    Column("stream", TEXT, False, "stream", "stream", "its name", repeats=True),
    Column("index", INT64, True, "index", "idx", "0, 1, 2 … within the stream; null for meta entries and parts"),
    Column("chunk", INT64, False, "chunk", "chunk", "Event Horizon's chunk that its line is in", repeats=True),
    Column("offset", INT64, False, "offset", "offset", "where its line begins within the chunk"),
    Column("size", INT64, False, "size", "size", "bytes of its line", repeats=True),
    Column("kind", TEXT, False, "kind", "kind", "`data` `meta` `part` `expired` `erased`", repeats=True),
    Column("type", TEXT, True, "type", "type", "null without one", repeats=True),
    Column("time", TIME, False, "published_ms", "published_ms", "when it was appended"),
    Column("expires_at", TIME, True, "expires_ms", "expires_ms", "null without one"),
    Column("attributes", TEXT, True, "attributes", "attributes", "a JSON object; null without any", repeats=True),
    Column("body", BYTES, True, "body", "body", "null when it has expired or was erased"),
    Column("schema_version", INT32, False, "", "", "1", repeats=True),
)
"""In their only order. New ones are added at the end."""

NAMES: Final = tuple(column.name for column in EVENT)
SCHEMA_VERSION: Final = 1

_DDL: Final = {INT64: "BIGINT", INT32: "INT", TEXT: "STRING", TIME: "TIMESTAMP", BYTES: "BINARY"}


def ddl(columns: Iterable[Column] = EVENT) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{column.name} {_DDL[column.type]}" for column in columns)
