"""What is checked of the file: at the start before anything is changed, and all of it after an unclean stop.

A file that is refused at the start is left as it is. The whole of it is read beside the running server (`FileCheck`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from penstock.engines.sqlite.disk_failures import Damage
from penstock.engines.sqlite.lock import FILE_NAME as LOCK_NAME
from penstock.engines.sqlite.schema import APPLICATION_ID, MIGRATIONS
from penstock.errors import DataCorrupt


def check_file(connection: sqlite3.Connection, path: str, newest: int = len(MIGRATIONS)) -> None:
    """Refuse a file that is damaged at first sight, not ours, or newer than this program."""
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        tables: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise  # it cannot be read now: that says nothing about what is in it
        raise DataCorrupt(path, str(error)) from error
    if application != APPLICATION_ID and (application or version or tables):
        raise DataCorrupt(path, "it is a database of another program", remedy="Give another --data directory.")
    if version > newest:
        raise DataCorrupt(
            path,
            f"its schema is version {version}, this program knows up to {newest}",
            remedy="Run the version of Penstock that wrote it, or a newer one.",
        )


def check_unchanged(path: Path, connect: Callable[[Path, str], sqlite3.Connection]) -> None:
    """Refuse what `check_file` refuses, and an emptied file, through a connection that changes nothing."""
    if path.with_name(path.name + "-journal").exists():
        return  # only a connection that writes can look behind it
    if not path.stat().st_size:
        _check_new(path)
        return
    # Without a write-ahead log nothing beside the file matters, and nothing is made beside it.
    log = path.with_name(path.name + "-wal")
    connection = connect(path, "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1")
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


class FileCheck:
    """SQLite's own quick check, in a thread, on a connection of its own.

    `state` is "not needed", "running", "sound", "damaged" or "stopped"; `detail` says what is damaged.
    """

    def __init__(
        self, path: Path, damage: Damage, open_reader: Callable[[Path], sqlite3.Connection], *, needed: bool
    ) -> None:
        self._path, self._damage, self._open_reader = path, damage, open_reader
        self.state = "running" if needed else "not needed"
        self.detail = ""
        self._connection: sqlite3.Connection | None = None
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        if self.state == "running":
            self._connection = self._open_reader(self._path)
            self._task = asyncio.get_running_loop().run_in_executor(None, self._run, self._connection)

    def again(self) -> None:
        """Check again; something seems wrong. Does nothing while a check runs, or once damage is known."""
        if self.state not in ("running", "damaged"):
            if self._connection:
                self._connection.close()
            self.state = "running"
            self.start()

    async def wait(self) -> str:
        """The state when the check is over."""
        if self._task:
            await asyncio.shield(self._task)
        return self.state

    async def stop(self) -> None:
        """End the check, finished or not."""
        if self._connection and self._task:
            self._connection.interrupt()
            await self._task
            self._connection.close()

    def _run(self, connection: sqlite3.Connection) -> None:
        self.state, self.detail = self._found(connection)
        if self.state == "damaged":
            self._damage.note(self.detail)

    def _found(self, connection: sqlite3.Connection) -> tuple[str, str]:
        try:
            found = [row[0].decode() for row in connection.execute("PRAGMA quick_check(10)")]
        except sqlite3.Error as error:
            return "stopped" if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT else "damaged", str(error)
        return ("sound", "") if found == ["ok"] else ("damaged", "; ".join(found))
