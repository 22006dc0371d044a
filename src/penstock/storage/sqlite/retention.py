"""What goes: trimmed, expired and erased entries. Heads and numbering are never touched."""

# ruff: noqa: S608 - the statements are put together from the constants below; values are always bound

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.limits import BATCH_ENTRIES
from penstock.storage.sqlite.schema import set_fact
from penstock.values import Kind

TRIM_ROWS: Final = 2_000
"""Entries that one transaction drops: publishes wait for it."""

_TOMBSTONE = "type = '', attributes = '', body = x''"
_DUE = "SELECT id FROM entries WHERE expires_ms <= ? AND kind = 0 ORDER BY expires_ms, id LIMIT ?"

# An entry's parts follow it within the same batch.
_WITH_PARTS = f"""
SELECT piece.id FROM entries first JOIN entries piece
ON piece.id >= first.id AND piece.id < first.id + {BATCH_ENTRIES} AND piece.kind IN (0, 2)
AND piece.stream = first.stream AND piece.idx = first.idx
WHERE first.kind = 0 AND first.id IN (SELECT value FROM json_each(?))
"""


def trim_slice(connection: sqlite3.Connection, upto: int) -> int:
    """Drop some of the oldest entries up to an id; return how many went, 0 when all have gone."""
    set_fact(connection, "trimmed_upto", upto)
    query = "SELECT max(id) FROM (SELECT id FROM entries WHERE id <= ? ORDER BY id LIMIT ?)"
    end = connection.execute(query, (upto, TRIM_ROWS)).fetchone()[0]
    if end is None:
        return 0
    connection.execute(
        "DELETE FROM places WHERE id <= ? AND stream IN (SELECT DISTINCT stream FROM entries WHERE id <= ?)", (end, end)
    )
    return connection.execute("DELETE FROM entries WHERE id <= ?", (end,)).rowcount


def expire(connection: sqlite3.Connection, now_ms: int, limit: int) -> int:
    """Turn entries whose time has run out, and their parts, into tombstones; return how many data entries."""
    due = [row[0] for row in connection.execute(_DUE, (now_ms, limit))]
    return _bury(connection, Kind.EXPIRED, due) if due else 0


def erase(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Turn these data entries and their parts into tombstones; return how many data entries."""
    # The freed bytes are overwritten, those of whole pages too: somebody wants them gone.
    connection.execute("PRAGMA secure_delete = ON")
    try:
        return _bury(connection, Kind.ERASED, ids)
    finally:
        connection.execute("PRAGMA secure_delete = FAST")


def _bury(connection: sqlite3.Connection, kind: Kind, ids: Sequence[int]) -> int:
    pieces = _json([row[0] for row in connection.execute(_WITH_PARTS, (_json(ids),))])
    update = f"UPDATE entries SET kind = ?, {_TOMBSTONE} WHERE id IN (SELECT value FROM json_each(?)) AND kind = ?"
    connection.execute(update, (kind, pieces, Kind.PART))
    return connection.execute(update, (kind, pieces, Kind.DATA)).rowcount


def _json(ids: Sequence[int]) -> str:
    return msgspec.json.encode(ids).decode()


def stored_bytes(connection: sqlite3.Connection) -> int:
    """Bytes in use: pages that trimming freed are used again, so they do not count."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
