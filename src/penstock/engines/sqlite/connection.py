"""Opens connections to the file, and says what SQLite's errors mean."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.engines.sqlite.lock import FILE_NAME as LOCK_NAME
from penstock.engines.sqlite.schema import check_file, migrate
from penstock.errors import DataCorrupt, DiskFull, EngineGone, OperatorError

WRITER_CACHE_KIB: Final = 64 * 1024
"""Pages the writer keeps: over a million streams, the fold and the heads live from it."""
READER_CACHE_KIB: Final = 8 * 1024
CHECKPOINT_PAGES: Final = 4_000
"""Pages (16 MiB), by estimate, that are written before they are moved into the file (checkpoint.py): the more there
are, the more of them are the same page again, and the larger the write-ahead log."""
LAST_RESORT: Final = 4
"""So many times as many pages in the write-ahead log, and the writer moves them itself, within its commit."""
_LOW_DISK_BYTES: Final = 1024 * 1024


def open_writer(
    path: Path, *, synchronous: str = "FULL", checkpoint_pages: int = CHECKPOINT_PAGES
) -> sqlite3.Connection:
    """The one connection that writes. Makes the file, for nobody else to read, or brings an older one up to date."""
    if path.exists():
        _check_unchanged(path)
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


def _check_unchanged(path: Path) -> None:
    """Refuse what `check_file` refuses, and an emptied file, through a connection that changes nothing."""
    if path.with_name(path.name + "-journal").exists():
        return  # only a connection that writes can look behind it
    if not path.stat().st_size:
        _check_new(path)
        return
    # Without a write-ahead log nothing beside the file matters, and nothing is made beside it.
    log = path.with_name(path.name + "-wal")
    connection = _connect(path, "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1")
    try:
        check_file(connection, str(path))
    except DataCorrupt as error:
        error.remedy += " The file was left as it is."
        raise
    finally:
        connection.close()


def _check_new(path: Path) -> None:
    """An empty file is all that the first start has made before it was cut off, or what became of a log."""
    others = {one.name for one in path.parent.iterdir()} - {path.name, LOCK_NAME}
    if others:
        raise DataCorrupt(
            str(path),
            f"it is empty, but this directory was in use: {min(others)} is there",
            remedy="Restore a backup into a new directory; or remove the empty file, to begin a new log.",
        )


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
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: sqlite3.Error, path: Path) -> OperatorError:
    """What a failure of SQLite means for the operator."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        return DiskFull(f"no space left for {path}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DataCorrupt(str(path), str(error))
    return EngineGone(f"{path}: {error}")


def _disk_is_full(path: Path) -> bool:
    # The shared-memory file that cannot grow is an I/O error to SQLite, not a full disk.
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _LOW_DISK_BYTES
