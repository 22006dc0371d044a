"""What goes: trimmed, expired and erased entries. Heads and numbering are never touched."""

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
_DUE = "SELECT id FROM entries WHERE expires_ms <= ? AND kind IN (0, 2) ORDER BY expires_ms, id LIMIT ?"


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
    """Turn entries whose time has run out into tombstones; return how many data entries."""
    ids = [row[0] for row in connection.execute(_DUE, (now_ms, limit))]
    return _bury(connection, Kind.EXPIRED, ids)


def erase(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Turn these data entries and their parts into tombstones; return how many data entries."""
    # The freed bytes are overwritten, those of whole pages too: somebody wants them gone.
    connection.execute("PRAGMA secure_delete = ON")
    try:
        return _bury(connection, Kind.ERASED, [*ids, *_parts(connection, ids)])
    finally:
        connection.execute("PRAGMA secure_delete = FAST")


def _bury(connection: sqlite3.Connection, kind: Kind, ids: Sequence[int]) -> int:
    chosen = msgspec.json.encode(ids).decode()
    update = f"UPDATE entries SET kind = ?, {_TOMBSTONE} WHERE id IN (SELECT value FROM json_each(?)) AND kind = ?"  # noqa: S608
    connection.execute(update, (kind, chosen, Kind.PART))
    return connection.execute(update, (kind, chosen, Kind.DATA)).rowcount


def _parts(connection: sqlite3.Connection, ids: Sequence[int]) -> list[int]:
    """The parts of these entries: they follow within the same batch."""
    query = """
        SELECT part.id FROM entries first JOIN entries part
        ON part.id > first.id AND part.id < first.id + ? AND part.kind = 2
        AND part.stream = first.stream AND part.idx = first.idx
        WHERE first.kind = 0 AND first.id IN (SELECT value FROM json_each(?))
    """
    return [row[0] for row in connection.execute(query, (BATCH_ENTRIES, msgspec.json.encode(ids).decode()))]


def stored_bytes(connection: sqlite3.Connection) -> int:
    """Bytes in use: pages that trimming freed are used again, so they do not count."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)
