"""The registry on SQLite: one table, versions from one counter that the file keeps."""

from __future__ import annotations

import sqlite3

from penstock.core.clock import Clock
from penstock.engines.checks import check_record, check_version
from penstock.engines.sqlite.reader_threads import Readers
from penstock.engines.sqlite.retention import in_slices
from penstock.engines.sqlite.schema import fact, set_fact
from penstock.engines.sqlite.writer import SqliteWriter
from penstock.limits import PAGE_ENTRIES
from penstock.values import Record

_GET = "SELECT value, version, expires_ms FROM records WHERE key = ? AND (expires_ms IS NULL OR expires_ms > ?)"
_LIST = """
SELECT key, value, version, expires_ms FROM records
WHERE key > ? AND key >= ? AND key < CAST(? || x'ff' AS TEXT) AND (expires_ms IS NULL OR expires_ms > ?)
ORDER BY key LIMIT ?
"""


class SqliteRegistry:
    """`core.registry.Registry` over the table `records`."""

    def __init__(self, writer: SqliteWriter, readers: Readers, clock: Clock) -> None:
        self._writer, self._readers, self._clock = writer, readers, clock

    async def get(self, key: str) -> Record | None:
        check_record(key)
        now_ms = self._clock.now_ms()
        return await self._readers.run(lambda reader: _get(reader.connection, key, now_ms))

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        check_record(key, value)
        now_ms = self._clock.now_ms()

        def write(connection: sqlite3.Connection) -> Record:
            check_version(key, _get(connection, key, now_ms), expect)
            version = fact(connection, "version") + 1
            set_fact(connection, "version", version)
            connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", (key, value, version, expires_ms))
            return Record(key, value, version, expires_ms)

        return await self._writer.run(write, len(value))

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        check_record(key)
        now_ms = self._clock.now_ms()

        def write(connection: sqlite3.Connection) -> bool:
            found = _get(connection, key, now_ms)
            check_version(key, found, expect)
            if connection.execute("DELETE FROM records WHERE key = ?", (key,)).rowcount:
                set_fact(connection, "version", fact(connection, "version") + 1)  # whoever hears of it has a number
            return found is not None

        return await self._writer.run(write)

    async def list(self, prefix: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Record]:
        values = (after, prefix, prefix, self._clock.now_ms(), min(limit, PAGE_ENTRIES))
        rows = await self._readers.run(lambda reader: reader.connection.execute(_LIST, values).fetchall())
        return [Record(key.decode(), value, version, expires_ms) for key, value, version, expires_ms in rows]

    async def expire(self, limit: int = 10_000) -> int:
        now_ms = self._clock.now_ms()
        query = "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE expires_ms <= ? LIMIT ?)"

        def some(connection: sqlite3.Connection, count: int) -> int:
            return connection.execute(query, (now_ms, count)).rowcount

        return await in_slices(self._writer, some, limit)


def _get(connection: sqlite3.Connection, key: str, now_ms: int) -> Record | None:
    row = connection.execute(_GET, (key, now_ms)).fetchone()
    return Record(key, *row) if row else None
