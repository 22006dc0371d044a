"""Puts entries into the table, many with one statement.

SQLite's calls release the interpreter lock, and beside a busy event loop every return waits for a
switch interval. One statement a row (`executemany`) then takes 140 ms for 64 rows, one statement for
all of them 7 ms. Hence an INSERT for every number of rows up to 128, and for a few larger numbers. One that is
the whole group needs no BEGIN and no COMMIT: with 96 rows that is 1.2 µs a row instead of 1.4.

Before it binds a value, Python's `sqlite3` looks for an adapter, unless it is a number, a text or a `bytearray`. For
`bytes` and None that takes longer than SQLite takes for the row. So rows of plain events, which most are, come
first, with what they all have in common in the statement, and short bodies are copied: 0.8 µs a row instead of 1.8.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any, Final

from penstock.engines.sqlite.unfolded_entries import Columns
from penstock.values import Entry, Kind
from penstock.wire.table_columns import EVENT

_FULL: Final = ("?",) * sum(bool(column.sql) for column in EVENT)
"""Values of the table `entries`, in the order of `wire/table_columns.py`; the stream is its number."""
_PLAIN: Final = ("?", "?", "?", "?", "?", "?", "0", "''", "?", "NULL", "''", "?")  # no kind, type, expiry, attributes
_PLAIN_VALUES: Final = _PLAIN.count("?")
_EXACT_UPTO: Final = 128
_LARGER: Final = (512, 256)
_COPIED_BYTES: Final = 4_096
"""A longer body is bound as it is: to copy it would take longer than to look for its adapter."""
_DATA: Final = Kind.DATA


class EntryRows:
    """The rows of a group: plain ones up to the first that is not, then whole ones."""

    __slots__ = ("_full", "_plain")

    def __init__(self) -> None:
        self._plain: list[Any] = []  # their values, one after the other
        self._full: list[Any] = []

    def add(self, entry: Entry, stream: int, idx: int | None) -> None:
        """Add the row of an entry, whose stream has this number."""
        body = bytearray(entry.body) if len(entry.body) <= _COPIED_BYTES else entry.body
        special = entry.kind is not _DATA or entry.type or entry.attributes or entry.expires_ms is not None
        if special or self._full:
            self._full += (
                entry.id, stream, idx, entry.chunk, entry.offset, entry.size,
                int(entry.kind),  # sqlite3 takes ten times as long over an enum
                entry.type, entry.published_ms, entry.expires_ms, entry.attributes, body,
            )  # fmt: skip
        else:
            self._plain += (
                entry.id, stream, idx, entry.chunk, entry.offset, entry.size, entry.published_ms, body
            )  # fmt: skip

    @property
    def statements(self) -> int:
        """How many it takes to insert them."""
        return sum(len(counts(len(values) // width)) for values, width in self._kinds())

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert them; the caller's transaction decides when they hold."""
        for values, width in self._kinds():
            begin = 0
            for count in counts(len(values) // width):
                end = begin + width * count
                chosen = values if end - begin == len(values) else values[begin:end]
                connection.execute(_statement(count, plain=width == _PLAIN_VALUES), chosen)
                begin = end

    def spots(self) -> Columns:
        """Their coordinates."""
        ids, streams, indexes, chunks, offsets = (
            self._plain[column::_PLAIN_VALUES] + self._full[column :: len(_FULL)] for column in range(5)
        )
        return streams, ids, indexes, chunks, offsets

    def _kinds(self) -> tuple[tuple[list[Any], int], tuple[list[Any], int]]:
        return (self._plain, _PLAIN_VALUES), (self._full, len(_FULL))


def counts(total: int) -> list[int]:
    """How *total* rows are cut into statements."""
    cut: list[int] = []
    for size in (*_LARGER, _EXACT_UPTO):
        cut += [size] * (total // size)
        total %= size
    return [*cut, total] if total else cut


@cache
def _statement(count: int, *, plain: bool) -> str:
    row = f"({','.join(_PLAIN if plain else _FULL)})"
    return "INSERT INTO entries VALUES " + ", ".join([row] * count)  # noqa: S608 - no value in it
