"""A few threads that read, each with a connection of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import Busy, EngineGone
from penstock.storage.sqlite.connection import open_reader, translated
from penstock.storage.sqlite.reader import Names, Reader

READERS: Final = 3
"""Threads. SQLite works without the interpreter lock, so more than one of them gets something done."""
WAITING_READS: Final = 10_000
"""Reads that wait or run. Over it: `Busy`."""

T = TypeVar("T")


class Readers:
    """Runs functions of a `Reader` outside the event loop."""

    def __init__(self, path: Path, *, threads: int = READERS, waiting: int = WAITING_READS) -> None:
        self._path, self._limit = path, waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-reader")
        self._names = Names()
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._running = 0
        self._closed = False

    async def run(self, function: Callable[[Reader], T]) -> T:
        """Call *function* in a reader's thread; `Busy` if too many wait."""
        if self._closed:
            raise EngineGone("the engine is closed")
        if self._running >= self._limit:
            raise Busy("storage.reads", self._limit)
        self._running += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, function)
        finally:
            self._running -= 1

    async def close(self) -> None:
        """Wait for the reads that run, then close their connections."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for connection in self._connections:
            connection.close()

    def _call(self, function: Callable[[Reader], T]) -> T:
        try:
            return function(self._reader())
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _reader(self) -> Reader:
        reader: Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            connection = open_reader(self._path)
            self._connections.append(connection)
            reader = self._local.reader = Reader(connection, self._names)
        return reader
