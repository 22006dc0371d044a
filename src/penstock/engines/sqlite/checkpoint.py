"""Moves pages from the write-ahead log into the file, beside the writer.

Left to itself SQLite does it within a commit, which then takes twenty times as long, and with it every publish
that waits for it. Here a thread of its own moves most of it while the writer goes on, and then what came meanwhile;
the writer moves what came during that, which is little, so that its log begins anew instead of growing for ever.

    writer         commit … commit ── enough ─▶                              commit, moves the rest ─▶ …
    checkpointer                       moves it, fsyncs ─▶ the same again ─▶ done ─▲
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Final

from penstock.engines.sqlite.connection import open_checkpointer

log = logging.getLogger("penstock.engines")

CHECKPOINT_PAGES: Final = 4_000
"""Pages (16 MiB), by estimate, that are written before they are moved into the file: the more there
are, the more of them are the same page again, and the larger the write-ahead log."""
PAGE_BYTES: Final = 4096
GROUP_PAGES: Final = 3
"""Pages that a transaction writes whatever is in it: the ends of the table, of an index, a head."""


class Checkpointer:
    """Lives as long as the writer, who tells it of every commit. `start` and `stop` are the writer's, too."""

    def __init__(self, path: Path, *, synchronous: str, pages: int) -> None:
        self._path, self._synchronous, self._pages = path, synchronous, pages
        self._written = 0  # pages since the last time, by estimate
        self._due, self._moved = threading.Event(), threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="penstock-checkpointer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is being moved any more."""
        self._ending = True
        self._due.set()
        self._thread.join()

    def committed(self, connection: sqlite3.Connection, weight: int) -> None:
        """The writer has committed so many bytes. Called between two transactions, after the answers."""
        self._written += GROUP_PAGES + weight // PAGE_BYTES
        if self._moved.is_set():
            self._moved.clear()
            _move(connection)
        elif self._written >= self._pages:
            self._written = 0
            self._due.set()

    def _work(self) -> None:
        connection = open_checkpointer(self._path, synchronous=self._synchronous)
        while self._due.wait() and not self._ending:
            self._due.clear()
            if _move(connection) and _move(connection):
                self._moved.set()
        connection.close()


def _move(connection: sqlite3.Connection) -> bool:
    """Whether it went well. If not, for want of space perhaps, the log still has everything, for the next time."""
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        log.warning("checkpoint.failed", extra={"error": str(error)})
        return False
    return True
