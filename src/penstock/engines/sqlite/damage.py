"""What SQLite finds wrong with a file while it is in use, whoever meets it first: a reader, the writer or the check.

From then on nothing is stored (`stop_writing`), and the server is not ready. What is refused at the start already is in
`schema.py` (`check_file`) and `connection.py`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from penstock.engines.sqlite.connection import translated
from penstock.errors import DataCorrupt, OperatorError

log = logging.getLogger("penstock.engines")


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
    """Let every further change fail. What is stored into a damaged file is acknowledged, and may not be found again."""
    connection.execute("PRAGMA query_only = ON")
