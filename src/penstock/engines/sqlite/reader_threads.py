"""A few threads that read, each with a connection of its own.

Work waits in two lines. What reads a few rows goes before *long* reads, which make a page of many entries: however many
readers of the past there are, a read of one entry, a record or a mailbox waits for the page that is being read, not for
all that wait. Every fourth time a long one goes first, so it comes to its turn.

Looking through many names or entries for a few is a *scan*. Scans run in slices of some milliseconds, and leave one of
the threads to everybody else.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.engines.sqlite.connection import open_reader
from penstock.engines.sqlite.disk_failures import Damage
from penstock.engines.sqlite.reader import SqliteReader, StreamNames
from penstock.errors import Busy, EngineGone
from penstock.limits import READS, SCANS

T = TypeVar("T")

LONG_FIRST: Final = 4
"""Every so many times, a long read goes before short ones."""


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
        self._short: deque[_WaitingRead] = deque()
        self._long: deque[_WaitingRead] = deque()
        self._turn = 0
        self._running = self._scanning = 0
        self._lane = asyncio.Semaphore(max(1, threads - 1))
        self._closed = False

    async def run(self, function: Callable[[SqliteReader], T], *, long: bool = False) -> T:
        """Call *function* in a reader's thread; `Busy` if too many wait."""
        self._admit()
        try:
            return await self._submit(lambda: self.here(function), long=long)
        finally:
            self._running -= 1

    async def scan(self, function: Callable[[SqliteReader], T]) -> T:
        """As `run`, for one slice of a scan: first come, first served among scans."""
        if self._scanning >= SCANS:
            raise Busy("scans at once", SCANS)
        self._scanning += 1
        try:
            async with self._lane:
                return await self.run(function, long=True)
        finally:
            self._scanning -= 1

    def start(self, work: Callable[[], None], *, long: bool) -> None:
        """Call *work*, which must not raise, in a reader's thread: it calls `here`, and tells the loop by itself."""
        self._admit()
        self._submit(work, long=long).add_done_callback(self._ended)

    def _submit(self, call: Callable[[], T], *, long: bool) -> asyncio.Future[T]:
        """Put it in its line, and let a thread take the next of either."""
        work = _WaitingRead(call)
        (self._long if long else self._short).append(work)
        self._pool.submit(self._take_next)
        return asyncio.wrap_future(work.outcome)

    def _take_next(self) -> None:
        """In a reader's thread. There are as many calls of this as there is work, so one line has some."""
        self._turn += 1
        first, second = (self._short, self._long) if self._turn % LONG_FIRST else (self._long, self._short)
        try:
            work = first.popleft()
        except IndexError:
            work = second.popleft()
        work.do()

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


class _WaitingRead:
    """A call that waits in a line, and what came of it."""

    __slots__ = ("_call", "outcome")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.outcome: Future[Any] = Future()

    def do(self) -> None:
        if not self.outcome.set_running_or_notify_cancel():
            return
        try:
            self.outcome.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - whoever waits for it hears of it
            self.outcome.set_exception(error)
