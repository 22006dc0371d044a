"""What goes: trimmed, expired and erased entries. Heads and numbering are never touched.

All of it in slices, a transaction each: whoever publishes has a turn between two of them, however much is due.
"""

# ruff: noqa: S608 - the statements are put together from the constants below; values are always bound

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.engines.sqlite.schema import set_fact
from penstock.engines.sqlite.writer import SqliteWriter
from penstock.limits import BATCH_ENTRIES
from penstock.values import Kind

TRIM_ROWS: Final = 500
"""Entries that one transaction drops: publishes wait for it."""
TRIM_BYTES: Final = 4 * 1024 * 1024
"""Bytes of their bodies, for the same reason; one entry always goes."""
BURY_ROWS: Final = 200
"""Entries that one transaction turns into tombstones."""
BURY_LOOKS: Final = 20 * BATCH_ENTRIES
"""Entries that it looks at for parts of those: where those that go are far apart, fewer of them go at once."""
GONE_ROWS: Final = 500
"""Rows of anything else that one transaction deletes: items of a mailbox, records of the registry."""

_TOMBSTONE = "type = '', attributes = '', body = x''"
_DUE = "SELECT id FROM entries WHERE expires_ms <= ? AND kind = 0 ORDER BY expires_ms, id LIMIT ?"
_SIZES = "SELECT id, length(body) FROM entries WHERE id <= ? ORDER BY id LIMIT ?"
_PARTS = "SELECT id, stream, idx FROM entries WHERE id > ? AND id < ? AND kind = 2"
_BURIED = "SELECT id, stream, idx FROM entries WHERE kind = 0 AND id IN (SELECT value FROM json_each(?))"


def trim_slice(connection: sqlite3.Connection, upto: int) -> int:
    """Drop some of the oldest entries up to an id; return how many went, 0 when all have gone."""
    set_fact(connection, "trimmed_upto", upto)
    end = total = 0
    for id, size in connection.execute(_SIZES, (upto, TRIM_ROWS)):
        total += size
        if end and total > TRIM_BYTES:
            break
        end = id
    if not end:
        return 0
    connection.execute(
        "DELETE FROM places WHERE id <= ? AND stream IN (SELECT DISTINCT stream FROM entries WHERE id <= ?)", (end, end)
    )
    return connection.execute("DELETE FROM entries WHERE id <= ?", (end,)).rowcount


def expire_slice(connection: sqlite3.Connection, now_ms: int, limit: int) -> int:
    """Turn some entries whose time has run out, and their parts, into tombstones; return how many data entries."""
    due = sorted([row[0] for row in connection.execute(_DUE, (now_ms, min(limit, BURY_ROWS)))])
    return _bury(connection, Kind.EXPIRED, due[: together(due)]) if due else 0


def erase_slice(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Turn these data entries and their parts into tombstones; return how many data entries."""
    # The freed bytes are overwritten, those of whole pages too: somebody wants them gone.
    connection.execute("PRAGMA secure_delete = ON")
    try:
        return _bury(connection, Kind.ERASED, ids)
    finally:
        connection.execute("PRAGMA secure_delete = FAST")


def together(ids: Sequence[int]) -> int:
    """How many of these rising ids, from the first on, are few enough for one transaction."""
    looks = reached = 0
    for count, id in enumerate(ids[:BURY_ROWS]):
        end = id + BATCH_ENTRIES
        looks += end - max(id, reached)
        if count and looks > BURY_LOOKS:
            return count
        reached = end
    return min(len(ids), BURY_ROWS)


def _bury(connection: sqlite3.Connection, kind: Kind, ids: Sequence[int]) -> int:
    first = {row[0]: row[1:] for row in connection.execute(_BURIED, (_json(ids),))}
    update = f"UPDATE entries SET kind = ?, {_TOMBSTONE} WHERE id IN (SELECT value FROM json_each(?)) AND kind = ?"
    if first:
        connection.execute(update, (kind, _json(_parts_of(connection, first)), Kind.PART))
        connection.execute(update, (kind, _json(list(first)), Kind.DATA))
    return len(first)


def _parts_of(connection: sqlite3.Connection, first: dict[int, tuple[int, int]]) -> list[int]:
    """The parts of some data entries: each follows its entry within the same batch."""
    whole = set(first.values())
    found: list[int] = []
    reached = 0
    for id in sorted(first):
        end = id + BATCH_ENTRIES
        for part, stream, index in connection.execute(_PARTS, (max(id, reached - 1), end)):
            if (stream, index) in whole:
                found.append(part)
        reached = end
    return found


def _json(ids: Sequence[int]) -> str:
    return msgspec.json.encode(ids).decode()


def stored_bytes(connection: sqlite3.Connection) -> int:
    """Bytes in use: pages that trimming freed are used again, so they do not count."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


async def in_slices(writer: SqliteWriter, some: Callable[[sqlite3.Connection, int], int], limit: int = 1 << 62) -> int:
    """Call *some* with how many rows it may delete, a transaction each, until it deletes none; return how many went."""
    total = 0
    while total < limit:
        count = min(GONE_ROWS, limit - total)
        gone = await writer.run(lambda connection: some(connection, count))  # noqa: B023 - it is waited for at once
        if not gone:
            break
        total += gone
    return total
