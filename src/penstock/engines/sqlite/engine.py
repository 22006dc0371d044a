"""Puts the embedded engine together, and takes it apart again."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Self

import msgspec

from penstock.core.bus import LocalBus
from penstock.core.change_watch import Changes
from penstock.core.clock import Clock, WallClock
from penstock.engines.sqlite import schema
from penstock.engines.sqlite.backup import Manifest, backup
from penstock.engines.sqlite.checkpoint import CHECKPOINT_PAGES, Checkpointer
from penstock.engines.sqlite.connection import open_reader, open_writer
from penstock.engines.sqlite.disk_failures import Damage, stop_writing, translated
from penstock.engines.sqlite.export import SqliteExport
from penstock.engines.sqlite.faults import SqliteFaults
from penstock.engines.sqlite.file_check import FileCheck
from penstock.engines.sqlite.known_streams import KNOWN_STREAMS, KnownStream, KnownStreams, load_by_number
from penstock.engines.sqlite.lock import DirectoryLock
from penstock.engines.sqlite.log import SqliteLog
from penstock.engines.sqlite.mailbox import SqliteMailbox
from penstock.engines.sqlite.reader_threads import Readers
from penstock.engines.sqlite.registry import SqliteRegistry
from penstock.engines.sqlite.unfolded_entries import UnfoldedSpots
from penstock.engines.sqlite.writer import Limits, SqliteWriter
from penstock.errors import DataCorrupt
from penstock.settings import DEFAULTS
from penstock.values import Head, Kind


class SqliteOptions(msgspec.Struct, frozen=True):
    """Options for tests and measurements; the server leaves them as they are."""

    limits: Limits = Limits()
    known_streams: int = KNOWN_STREAMS
    readers: int = DEFAULTS.log.readers
    synchronous: str = "FULL"
    checkpoint_pages: int = CHECKPOINT_PAGES
    writer: type[SqliteWriter] = SqliteWriter


def open_sqlite(
    directory: Path, *, node: str, server: str = DEFAULTS.eventhorizon.server, clock: Clock | None = None,
    faults: SqliteFaults | None = None, options: SqliteOptions | None = None,
) -> SqliteEngine:  # fmt: skip
    """The engine over `penstock.db` in *directory*; `async with` opens and closes it."""
    return SqliteEngine(directory, node, server, clock or WallClock(), faults, options or SqliteOptions())


class SqliteEngine:
    """Log, mailbox, registry and bus of one process on one data directory."""

    log: SqliteLog
    mailbox: SqliteMailbox
    registry: SqliteRegistry
    export: SqliteExport
    check: FileCheck
    changes: Changes | None = None  # nobody else can make any

    def __init__(
        self, directory: Path, node: str, server: str, clock: Clock, faults: SqliteFaults | None, options: SqliteOptions
    ) -> None:
        self.directory, self.path = directory, directory / schema.FILE_NAME
        self.bus = LocalBus(node)
        self._server, self._clock, self._faults, self._options = server, clock, faults, options

    async def __aenter__(self) -> Self:
        """Open the file. `DataLocked`, `DataCorrupt` and `DiskFull` if that cannot be done."""
        self._lock = DirectoryLock(self.directory)
        try:
            connection = await asyncio.to_thread(self._connect)
            try:
                self._open(connection)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            self._lock.release()
            raise translated(error, self.path) from error
        except BaseException:
            self._lock.release()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.check.stop()
        await self.export.close()
        await self._readers.close()
        await self._writer.close()  # last: then SQLite takes the write-ahead log away
        self._lock.release()

    async def backup(self, directory: Path) -> Manifest:
        """Copy the file into an empty *directory* while it is in use."""
        try:
            return await asyncio.to_thread(backup, self.path, directory)
        except DataCorrupt:
            self.check.again()  # the copy is damaged: is the file?
            raise

    @property
    def queued(self) -> int:
        """Jobs that wait for the writer."""
        return self._writer.queued

    @property
    def trouble(self) -> str:
        """Why this engine should get no requests now; empty when all is well."""
        return f"the data file is damaged: {self._damage.detail}" if self._damage.detail else ""

    def _connect(self) -> sqlite3.Connection:
        options = self._options
        return open_writer(self.path, synchronous=options.synchronous, checkpoint_pages=options.checkpoint_pages)

    def _open(self, connection: sqlite3.Connection) -> None:
        options, clock, loop = self._options, self._clock, asyncio.get_running_loop()
        known, recent = KnownStreams(options.known_streams), UnfoldedSpots()
        clean = schema.fact(connection, "clean")
        _read_unfolded(connection, known, recent)
        schema.set_fact(connection, "clean", 0)
        self._damage = damage = Damage(self.path, lambda: loop.call_soon_threadsafe(self._stop_writing))
        self.check = FileCheck(self.path, damage, open_reader, needed=not clean)
        self._readers = Readers(self.path, damage, threads=options.readers)
        self._writer = options.writer(
            self.path, connection, known=known, recent=recent, next_id=schema.last_id(connection) + 1,
            next_number=_last_number(connection) + 1, clock=clock, server=self._server, faults=self._faults,
            limits=options.limits, damage=damage,
            checkpointer=Checkpointer(self.path, synchronous=options.synchronous, pages=options.checkpoint_pages),
        )  # fmt: skip
        self.log = SqliteLog(
            writer=self._writer, readers=self._readers, known=known, recent=recent, clock=clock, server=self._server,
            trimmed_upto=schema.fact(connection, "trimmed_upto"),
            durability="fsync" if options.synchronous == "FULL" else "none",
        )  # fmt: skip
        self.mailbox = SqliteMailbox(self._writer, self._readers, clock)
        self.registry = SqliteRegistry(self._writer, self._readers, clock)
        self.export = SqliteExport(self.path, self.log, clock)
        self._writer.start()
        self.check.start()

    def _stop_writing(self) -> None:
        self._writer.run(stop_writing)


def _last_number(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT ifnull(max(number), 0) FROM streams").fetchone()[0])


def _read_unfolded(connection: sqlite3.Connection, known: KnownStreams, recent: UnfoldedSpots) -> None:
    """Find the entries that were not folded when the file was last in use."""
    known.folded_upto = schema.fact(connection, "folded_upto")
    query = "SELECT id, stream, idx, chunk, offset, size, kind, published_ms FROM entries WHERE id > ? ORDER BY id"
    last: dict[int, tuple[int, ...]] = {}
    rows = connection.execute(query, (known.folded_upto,)).fetchall()
    ids, streams, idxs, chunks, offsets = ([row[column] for row in rows] for column in range(5))
    recent.add((streams, ids, idxs, chunks, offsets))
    last.update((row[1], row) for row in rows)
    for found in load_by_number(connection, list(last)):
        id, _, idx, chunk, offset, size, kind, published_ms = last[found.number]
        name, next_index = found.head.stream, idx + (kind != Kind.META)
        head = Head(name, next_index, chunk, offset + size, found.head.subscribers, id, published_ms)
        known.add(name, KnownStream(found.number, head))
