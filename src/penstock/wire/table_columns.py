"""The columns of an event and of the lake's tables, declared once.

The Arrow schema of the export (`core/arrow.py`), its SQL (`engines/sqlite/export_pages.py`), the lake's tables
(`iceberg/schemas.py`), Spark's DDL (`pipeline/lake.py`), the rows that are read back (`engines/lake/event_rows.py`) and
the table in docs/export.md follow from this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.wire.ledger import COVERED

INT64, INT32, TEXT, TIME, BYTES = "int64", "int32", "utf8", "timestamp[us, UTC]", "binary"
BOOL, DOUBLE, DATE = "bool", "double", "date32"
"""Types by the names that Arrow has for them; it has none for a time in a time zone."""
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)", re.ASCII)


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


def _column(name: str, type: str, meaning: str, *, repeats: bool = False) -> Column:
    """A column of a table that no log has."""
    return Column(name, type, True, "", "", meaning, repeats)


_TO_WHOM_AND_WHAT: Final = (
    _column("door", TEXT, "through which it went", repeats=True),
    _column("recipient", TEXT, "to whom", repeats=True),
    _column("stream", TEXT, "of an interval: the stream", repeats=True),
    _column("first", INT64, "of an interval: the first id; 0 for an item"),
    _column("last", INT64, "of an interval: the last id"),
    _column("key", TEXT, "of an item: its key"),
    _column("month", TEXT, "of an item: the month of its mailbox", repeats=True),
    _column("number", INT64, "of an item: its number in that month"),
)

LEDGER: Final = (
    _column("entry", INT64, "the id of its batch in the log"),
    _column("node", TEXT, "which node wrote the batch", repeats=True),
    _column("epoch", INT64, "of the node: one for each start", repeats=True),
    _column("sequence", INT64, "of the batch within the epoch", repeats=True),
    _column("mark", TEXT, "`open`, `close` or empty", repeats=True),
    _column("lost", INT64, "records that the node had to drop before this batch", repeats=True),
    _column("time", TIME, "when it happened; null for the batch itself"),
    _column("state", TEXT, "what happened; `batch` for the row that stands for the batch itself", repeats=True),
    _column("reason", TEXT, "why", repeats=True),
    *_TO_WHOM_AND_WHAT,
    _column("expires_at", TIME, "of an item; null without one"),
)

DELIVERIES: Final = (
    *_TO_WHOM_AND_WHAT,
    _column("state", TEXT, "what became of it", repeats=True),
    _column("reason", TEXT, "why", repeats=True),
    _column("first_time", TIME, "of the first record about it"),
    _column("last_time", TIME, "of the last record about it"),
    _column("sent_time", TIME, "when it was first sent"),
    _column("acked_time", TIME, "when it was first acknowledged"),
    _column("attempts", INT64, "how often it was sent", repeats=True),
    _column("expires_at", TIME, "of an item; null without one"),
    _column("upto", INT64, "the id of the last batch that speaks of it"),
)
"""One row for each door, recipient and what: an interval (stream, first, last) or an item (key, month, number)."""

POSITIONS: Final = (
    _column("door", TEXT, "through which it said so", repeats=True),
    _column("recipient", TEXT, "who said it", repeats=True),
    _column("stream", TEXT, "in which stream; in all if it is empty", repeats=True),
    _column("upto", INT64, "it had everything by then that it was sent up to this id"),
    _column("time", TIME, "when it first said so"),
)

ROLLUP_HOURLY: Final = (
    _column("hour", TIME, "when it begins", repeats=True),
    _column("stream", TEXT, "its name", repeats=True),
    _column("door", TEXT, "empty for what was published", repeats=True),
    _column("state", TEXT, "`accepted` for what was published; else the ledger's", repeats=True),
    _column("latency_ms", INT64, "the upper end of a class: 1, 2, 4, 8 …; null where it is not known", repeats=True),
    _column("count", INT64, "entries, or records"),
    _column("bytes", INT64, "of the bodies of what was published"),
)
"""One row for each hour, stream, door, state and class of latency."""

ACTIVITY: Final = (
    _column("door", TEXT, "through which it was heard of", repeats=True),
    _column("recipient", TEXT, "who"),
    _column("first_time", TIME, "first heard of"),
    _column("last_time", TIME, "last heard of"),
    _column("records", INT64, "how many records of the ledger speak of it", repeats=True),
)
"""One row for each door and recipient."""

UNREADABLE: Final = (
    _column("entry", INT64, "its id; what it holds all the same is in `events`"),
    _column("stream", TEXT, "its name", repeats=True),
    _column("reason", TEXT, "why it cannot be read", repeats=True),
    _column("bytes", INT64, "of its body"),
    _column("typed_table", TEXT, "the typed table that it does not fit; null for entries of the system", repeats=True),
    _column("path", TEXT, "where in the body; empty for all of it, null for entries of the system", repeats=True),
)

TABLES: Final = {
    "events": EVENT,
    "ledger": LEDGER,
    "deliveries": DELIVERIES,
    "positions": POSITIONS,
    "rollup_hourly": ROLLUP_HOURLY,
    "activity": ACTIVITY,
    "unreadable": UNREADABLE,
}
"""The tables of the lake. A column's field id is its place, from 1 on: it never changes, as columns never move."""

DELIVERY_OUTCOMES: Final = "delivery_outcomes"
"""A view: all rows of `deliveries`, those `acked` that `positions` confirm, as `core/why.py` tells it of one entry."""

READ_BY_OUTCOMES: Final = ("deliveries", "positions")

_STEPS: Final = """\
WITH steps AS (
  SELECT door, recipient, stream, upto,
         lag(upto, 1, CAST(0 AS BIGINT)) OVER (PARTITION BY door, recipient, stream ORDER BY upto) AS beyond,
         min(time) OVER (PARTITION BY door, recipient, stream ORDER BY upto DESC) AS time
  FROM {prefix}positions),
told AS (
  SELECT d.*, CASE WHEN d.state NOT IN ({covered}) THEN NULL
                   WHEN a.time IS NULL OR s.time < a.time THEN s.time ELSE a.time END AS confirmed
  FROM {prefix}deliveries d
  LEFT JOIN steps a ON a.door = d.door AND a.recipient = d.recipient AND a.stream = ''
                   AND d.last > a.beyond AND d.last <= a.upto
  LEFT JOIN steps s ON s.door = d.door AND s.recipient = d.recipient AND s.stream = d.stream AND s.stream <> ''
                   AND d.last > s.beyond AND d.last <= s.upto)
"""
_CHANGED: Final = {
    "state": "CASE WHEN confirmed IS NULL THEN state ELSE 'acked' END AS state",
    "reason": "CASE WHEN confirmed IS NULL THEN reason ELSE '' END AS reason",
    "acked_time": "CASE WHEN confirmed IS NULL THEN acked_time ELSE confirmed END AS acked_time",
}


def outcomes_sql(prefix: str = "") -> str:
    """The SELECT of `DELIVERY_OUTCOMES`, as DuckDB and Spark understand it. *prefix* says where the tables are.

    A step: ids in (beyond, upto] were first confirmed at this time. A row is confirmed when its last id is. Each joins
    with two steps at most, one of its stream and one of all, so it stays one row. Items have the id 0, and are in none.
    """
    columns = [_CHANGED.get(column.name, column.name) for column in DELIVERIES]
    columns[:8] = [", ".join(columns[:8])]
    steps = _STEPS.format(prefix=prefix, covered=", ".join(f"'{state}'" for state in COVERED))
    return steps + "SELECT " + ",\n       ".join(columns) + "\nFROM told"


NAMES: Final = tuple(column.name for column in EVENT)
SCHEMA_VERSION: Final = 1

_DDL: Final = {
    INT64: "BIGINT", INT32: "INT", TEXT: "STRING", TIME: "TIMESTAMP", BYTES: "BINARY", BOOL: "BOOLEAN",
    DOUBLE: "DOUBLE", DATE: "DATE",
}  # fmt: skip


def decimal_size(type: str) -> tuple[int, int] | None:
    """The digits of a column's type, and those of them after the point: `decimal(10,2)`. None for any other type."""
    found = _DECIMAL.fullmatch(type)
    return (int(found[1]), int(found[2])) if found else None


def ddl(columns: Iterable[Column] = EVENT) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{column.name}` {_DDL.get(column.type) or column.type}" for column in columns)
