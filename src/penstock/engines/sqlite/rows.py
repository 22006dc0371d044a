"""Puts entries into the table, many with one statement.

SQLite's calls release the interpreter lock, and beside a busy event loop every return waits for a
switch interval. One statement a row (`executemany`) then takes 140 ms for 64 rows, one statement for
all of them 7 ms. Hence an INSERT for every number of rows up to 64, and for a few larger numbers.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any, Final

from penstock.engines.sqlite.recent import Columns
from penstock.wire.columns import EVENT

Value = int | str | bytes | None
COLUMNS: Final = sum(bool(column.sql) for column in EVENT)
"""Of the table `entries`, in the order of `wire/columns.py`; the stream is its number."""

_ROW: Final = f"({','.join('?' * COLUMNS)})"
_EXACT_UPTO: Final = 64
_LARGER: Final = (512, 256, 128)


def insert(connection: sqlite3.Connection, values: list[Value]) -> None:
    """Insert rows, given as their values one after the other; the caller's transaction decides when they hold."""
    begin = 0
    for count in counts(len(values) // COLUMNS):
        end = begin + COLUMNS * count
        connection.execute(_statement(count), values if end - begin == len(values) else values[begin:end])
        begin = end


def spots(values: list[Any]) -> Columns:
    """The coordinates of such rows."""
    ids, streams, indexes, chunks, offsets = (values[column::COLUMNS] for column in range(5))
    return streams, ids, indexes, chunks, offsets


def counts(total: int) -> list[int]:
    """How *total* rows are cut into statements."""
    cut: list[int] = []
    for size in (*_LARGER, _EXACT_UPTO):
        cut += [size] * (total // size)
        total %= size
    return [*cut, total] if total else cut


@cache
def _statement(count: int) -> str:
    return "INSERT INTO entries VALUES " + ", ".join([_ROW] * count)  # noqa: S608 - no value in it
