"""Reads through the whole file after an unclean stop, beside the running server."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from penstock.storage.sqlite.connection import open_reader


class FileCheck:
    """SQLite's own quick check, in a thread, on a connection of its own.

    `state` is "not needed", "running", "sound", "damaged" or "stopped"; `detail` says what is damaged.
    """

    def __init__(self, path: Path, *, needed: bool) -> None:
        self._path = path
        self.state = "running" if needed else "not needed"
        self.detail = ""
        self._connection: sqlite3.Connection | None = None
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        if self.state == "running":
            self._connection = open_reader(self._path)
            self._task = asyncio.get_running_loop().run_in_executor(None, self._run, self._connection)

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
        try:
            found = [row[0].decode() for row in connection.execute("PRAGMA quick_check(10)")]
        except sqlite3.OperationalError as error:
            interrupted = error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT
            self.state, self.detail = "stopped" if interrupted else "damaged", str(error)
        except sqlite3.Error as error:
            self.state, self.detail = "damaged", str(error)
        else:
            self.state = "sound" if found == ["ok"] else "damaged"
            self.detail = "" if self.state == "sound" else "; ".join(found)
