"""What SQLite's errors mean: the disk is full, the file is damaged, or it is out of reach.

Once damage is met, by a reader, the writer or the check, nothing is stored any more (`stop_writing`), and the server is
not ready. A full disk is not remembered: the next group tries again (`writer.py`).
What is refused at the start already: `file_check.py`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.errors import DataCorrupt, DiskFull, EngineGone, OperatorError

log = logging.getLogger("penstock.engines")

_LOW_DISK_BYTES: Final = 1024 * 1024


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


class Damage:
    """Damage of one file. `detail` is empty until some is met, then says what was found first. For any thread."""

    def __init__(self, path: Path, met: Callable[[], object]) -> None:
        self._path, self._met = path, met
        self.detail = ""

    def note(self, detail: str) -> None:
        """Damage was met: say so once, and let the engine act."""
        if self.detail:
            return
        self.detail = " ".join(detail.split())  # SQLite's findings have several lines
        log.error("data.damaged", extra={"file": str(self._path), "found": self.detail, "remedy": DataCorrupt.remedy})
        self._met()

    def translated(self, error: sqlite3.Error) -> OperatorError:
        """What a failure means for the operator; damage is noted."""
        meant = translated(error, self._path)
        if isinstance(meant, DataCorrupt):
            self.note(str(error))
        elif self.detail and error.sqlite_errorcode == sqlite3.SQLITE_READONLY:  # `stop_writing`
            return DataCorrupt(str(self._path), f"nothing more is stored in it: {self.detail}")
        return meant


def stop_writing(connection: sqlite3.Connection) -> None:
    """Make every further write fail: a damaged file could lose what was acknowledged."""
    connection.execute("PRAGMA query_only = ON")
