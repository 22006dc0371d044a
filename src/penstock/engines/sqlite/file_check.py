"""Reads through the whole file after an unclean stop, beside the running server."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from penstock.engines.sqlite.connection import open_reader
from penstock.engines.sqlite.damage import Damage


class FileCheck:
    """SQLite's own quick check, in a thread, on a connection of its own.

    `state` is "not needed", "running", "sound", "damaged" or "stopped"; `detail` says what is damaged.
    """

    def __init__(self, path: Path, damage: Damage, *, needed: bool) -> None:
        self._path, self._damage = path, damage
        self.state = "running" if needed else "not needed"
        self.detail = ""
        self._connection: sqlite3.Connection | None = None
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        if self.state == "running":
            self._connection = open_reader(self._path)
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
