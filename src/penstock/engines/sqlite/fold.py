"""Folds what was appended lately into the tables by stream: `places` and `heads`.

An append writes to the end of `entries` only. To keep an index by stream at the same time would write to
a random page for each entry: over a million streams that costs four times the append itself. So
the coordinates of the newest entries stay in memory (unfolded_entries.py), and when enough have gathered they
go into the file sorted by stream:

    gather     copy the coordinates of the unfolded entries into a table in memory, sorted
    place      move them from there into `places` and `heads`, slice by slice
    done       set `folded_upto`; only then the memory is freed

Each step is a small part of some transaction of the writer, so that publishes are not held up. Until
`folded_upto` moves, all of it can be done again: after a crash it is.

Entries of a few streams need no sorting, as few pages are written whatever their order: they go to their places
straight from `entries`, and the heads follow at the end. That takes a third of the time.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from penstock.engines.sqlite.schema import set_fact

FOLD_ROWS: Final = 256
"""Rows that one step writes, and a quarter of those that one step gathers: about a millisecond. With 1,024 each fold
held up publishes for a fifth of a second: at 14,000 a second that was every second p99."""

_MAKE_TABLE = """
CREATE TEMP TABLE unfolded (
    stream INTEGER, id INTEGER, idx INTEGER, chunk INTEGER, offset INTEGER,
    size INTEGER, kind INTEGER, published_ms INTEGER,
    PRIMARY KEY (stream, id)
) WITHOUT ROWID
"""
_GATHER = """
INSERT INTO temp.unfolded SELECT stream, id, idx, chunk, offset, size, kind, published_ms
FROM entries WHERE id > ? AND id <= ?
"""
_SLICE_END = """
SELECT stream, id FROM temp.unfolded WHERE (stream, id) > (?, ?) ORDER BY stream, id LIMIT 1 OFFSET ?
"""
_PLACE = """
INSERT OR REPLACE INTO places SELECT stream, id, idx, chunk, offset
FROM temp.unfolded WHERE (stream, id) > (?, ?) AND (stream, id) <= (?, ?) ORDER BY stream, id
"""
# With max() SQLite takes the other columns from the same row: the stream's last entry of the slice.
_HEADS = """
INSERT OR REPLACE INTO heads SELECT stream, idx + (kind <> 1), chunk, offset + size, max(id), published_ms
FROM temp.unfolded WHERE (stream, id) > (?, ?) AND (stream, id) <= (?, ?) GROUP BY stream
"""
_PLACE_UNSORTED = """
INSERT OR REPLACE INTO places SELECT stream, id, idx, chunk, offset FROM entries WHERE id > ? AND id <= ?
"""
_HEADS_BEHIND = """
INSERT OR REPLACE INTO heads SELECT stream, idx + (kind <> 1), chunk, offset + size, id, published_ms
FROM entries WHERE id IN (SELECT value FROM json_each(?))
"""
_Key = tuple[int, int]
_BEFORE_ALL: Final = (-1, -1)
_AFTER_ALL: Final = (2**62, 2**62)


FEW_STREAMS: Final = 64
"""Streams whose entries are folded unsorted."""


class Fold:
    """One fold, from `folded_upto` to the newest committed entry at its beginning."""

    def __init__(self, after: int, upto: int, rows: int) -> None:
        self.upto, self._rows = upto, rows
        self._begun = False
        self._gathered = after
        self._placed: _Key = _BEFORE_ALL
        self.done = False

    @staticmethod
    def prepare(connection: sqlite3.Connection) -> None:
        """Make the table in memory; once per connection."""
        connection.execute(_MAKE_TABLE)

    def step(self, connection: sqlite3.Connection) -> None:
        """Do the next part within the caller's transaction.

        If that transaction fails, throw this fold away and begin anew.
        """
        if not self._begun:
            connection.execute("DELETE FROM temp.unfolded")  # of a fold that was thrown away
            self._begun = True
        if self._gathered < self.upto:
            self._gather(connection)
        elif self._placed < _AFTER_ALL:
            self._place(connection)
        else:
            set_fact(connection, "folded_upto", self.upto)
            connection.execute("DELETE FROM temp.unfolded")
            self.done = True

    def _gather(self, connection: sqlite3.Connection) -> None:
        end = min(self._gathered + 4 * self._rows, self.upto)
        connection.execute(_GATHER, (self._gathered, end))
        self._gathered = end

    def _place(self, connection: sqlite3.Connection) -> None:
        end = connection.execute(_SLICE_END, (*self._placed, self._rows - 1)).fetchone() or _AFTER_ALL
        connection.execute(_PLACE, (*self._placed, *end))
        connection.execute(_HEADS, (*self._placed, *end))
        self._placed = end


class FoldOfFew(Fold):
    """A fold of the entries of a few streams, of each of which the last id is known."""

    def __init__(self, after: int, upto: int, rows: int, last_ids: list[int]) -> None:
        super().__init__(after, upto, rows)
        self._last_ids = last_ids

    def step(self, connection: sqlite3.Connection) -> None:
        if self._gathered < self.upto:
            end = min(self._gathered + self._rows, self.upto)
            connection.execute(_PLACE_UNSORTED, (self._gathered, end))
            self._gathered = end
        else:
            connection.execute(_HEADS_BEHIND, (msgspec.json.encode(self._last_ids).decode(),))
            set_fact(connection, "folded_upto", self.upto)
            self.done = True
