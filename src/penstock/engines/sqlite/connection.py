"""Opens connections to the file."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.engines.sqlite.disk_failures import translated
from penstock.engines.sqlite.file_check import check_file, check_unchanged
from penstock.engines.sqlite.schema import migrate

WRITER_CACHE_KIB: Final = 64 * 1024
"""Pages the writer keeps: over a million streams, the fold and the heads live from it."""
READER_CACHE_KIB: Final = 8 * 1024
LAST_RESORT: Final = 4
"""So many times as many pages in the write-ahead log, and the writer moves them itself, within its commit."""


def open_writer(path: Path, *, synchronous: str = "FULL", checkpoint_pages: int) -> sqlite3.Connection:
    """The one connection that writes. Makes the file, for nobody else to read, or brings an older one up to date."""
    if path.exists():
        check_unchanged(path, _connect)
    with suppress(OSError):  # SQLite will say what is wrong
        path.touch(mode=0o600)
    connection = _connect(path)
    try:
        check_file(connection, str(path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LAST_RESORT * checkpoint_pages}")
        connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA secure_delete = FAST")
        migrate(connection)
    except sqlite3.Error as error:
        connection.close()
        raise translated(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_checkpointer(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """A connection that writes nothing of its own: it moves pages from the write-ahead log into the file."""
    connection = _connect(path)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA cache_size = -64")
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads. Texts come as bytes: most are JSON on their way to a decoder."""
    connection = _connect(path, "mode=ro")
    connection.text_factory = bytes
    connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
    return connection


def _connect(path: Path, how: str = "mode=rwc") -> sqlite3.Connection:
    # Connections are made in one thread and used in another, by one thread at a time. Several
    # hundred statements stay prepared: inserts have one for each number of rows (entry_rows.py).
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?{how}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
    except sqlite3.Error as error:
        raise translated(error, path) from error
