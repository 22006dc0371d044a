"""A few threads that read, each with a connection of its own.

Looking through many names or entries for a few is a *scan*. Scans run in slices of some milliseconds, and leave one of
the threads to everybody else: however many there are, a read by name or number waits for none of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.engines.sqlite.connection import open_reader
from penstock.engines.sqlite.damage import Damage
from penstock.engines.sqlite.reader import SqliteReader, StreamNames
from penstock.errors import Busy, EngineGone
from penstock.limits import READS, SCANS

T = TypeVar("T")


class Readers:
    """Runs functions of a `SqliteReader` outside the event loop.

    SQLite works without the interpreter lock, so more than one thread gets something done.
    """

    def __init__(self, path: Path, damage: Damage, *, threads: int, waiting: int = READS) -> None:
        self._path, self._damage, self._threads, self._limit = path, damage, threads, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-reader")
        self._names = StreamNames()
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._running = self._scanning = 0
        self._lane = asyncio.Semaphore(max(1, threads - 1))
        self._closed = False

    async def run(self, function: Callable[[SqliteReader], T]) -> T:
        """Call *function* in a reader's thread; `Busy` if too many wait."""
        self._admit()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self.here, function)
        finally:
            self._running -= 1

    async def scan(self, function: Callable[[SqliteReader], T]) -> T:
        """As `run`, for one slice of a scan: first come, first served among scans."""
        if self._scanning >= SCANS:
            raise Busy("scans at once", SCANS)
        self._scanning += 1
        try:
            async with self._lane:
                return await self.run(function)
        finally:
            self._scanning -= 1

    def start(self, work: Callable[[], None]) -> None:
        """Call *work*, which must not raise, in a reader's thread: it calls `here`, and tells the loop by itself."""
        self._admit()
        asyncio.get_running_loop().run_in_executor(self._pool, work).add_done_callback(self._ended)

    @property
    def crowded(self) -> bool:
        """No thread is free. May be asked in any thread."""
        return self._running >= self._threads

    def here(self, function: Callable[[SqliteReader], T]) -> T:
        """Call *function* with the reader of the thread that this runs in."""
        try:
            return function(self._reader())
        except sqlite3.Error as error:
            raise self._damage.translated(error) from error

    def _admit(self) -> None:
        if self._closed:
            raise EngineGone("the engine is closed")
        if self._running >= self._limit:
            raise Busy("reads at once", self._limit)
        self._running += 1

    def _ended(self, work: asyncio.Future[None]) -> None:
        self._running -= 1

    async def close(self) -> None:
        """Wait for the reads that run, then close their connections."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for connection in self._connections:
            connection.close()

    def _reader(self) -> SqliteReader:
        reader: SqliteReader | None = getattr(self._local, "reader", None)
        if reader is None:
            connection = open_reader(self._path)
            self._connections.append(connection)
            reader = self._local.reader = SqliteReader(connection, self._names)
        return reader
