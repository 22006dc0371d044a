"""The lake as the server reads it: entries by id, by index, by cursor and by time; and its tables for the catalog.

    async with open_lake("/var/lib/penstock/lake", registry) as lake:
        entries, upto = await lake.read(("/orders",), 0, 5000, look)

What a table is made of is told by the record of the job that writes it, `lake/<job>`, and by nothing else. Each
question looks at that record first, so it never tells of rows that were erased or rewritten since.

Everything that touches the store runs in a few threads of its own, with a bounded line before them: a reader
of old entries waits behind other readers of old entries, never in front of a publish. What may take long is
done in slices, and stands in line again after each: a search through the whole lake holds up nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.core.export import Block, ExportRange
from penstock.core.registry import Registry
from penstock.core.typed_tables import declared_tables
from penstock.engines.lake.files import ChunkLine, TableFiles
from penstock.engines.pages import Look
from penstock.errors import Busy, ConfigInvalid, OperatorError, Trimmed
from penstock.limits import LAKE_READS, LAKE_SECONDS
from penstock.values import Entry
from penstock.wire.lake_files import TYPED, shown_name

if TYPE_CHECKING:
    from penstock.engines.lake.export_rows import ExportRows, FoundRows
    from penstock.engines.lake.search import Search
    from penstock.iceberg.reading import TablePlanner
    from penstock.iceberg.store import FileStore

THREADS: Final = 2
"""Threads: one long replay must not hold up the others."""
SLICE_SECONDS: Final = 0.05
"""How long a search keeps a thread while others wait: a few row groups."""
STORE_SECONDS: Final = 3
"""How long a thread waits for bytes of an object store, three times in all: a server waits for it when it stops."""
STORES: Final = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs")
"""Object stores and file systems that pyarrow opens, by the scheme of their addresses."""
READ: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "events": {"events": ("stream", "time")},
    "ledger": {"deliveries": ("recipient", "first", "last", "key"), "positions": ("recipient", "upto")},
    "rollup": {"rollup_hourly": ()},
}
"""The tables that the server itself reads, by the job that writes them, with the columns whose bounds choose files."""
_ATTEMPTS: Final = 4  # a file that compaction has just removed is found again by what the record says then

T = TypeVar("T")


class LakeUnreadable(OperatorError):
    """A file of the lake cannot be read. What it holds is not lost: it may be a store that is away."""

    code = "lake_unreadable"
    status = 503
    remedy = "Look at the lake's folder or store; './penstock audit' says which files are damaged."
    retry_after = 5


class TablePointers(msgspec.Struct):
    """What the record of a job says: how far it is, and where its tables' metadata is."""

    done: int = 0
    tables: dict[str, str] = {}


def open_lake(url: str, registry: Registry) -> LakeReader:
    """The lake in a folder or an object store, whose tables are named by records of *registry*."""
    place = urlsplit(url)
    if place.scheme in ("", "file"):
        path = Path(unquote(place.path) if place.scheme else url)
        if place.netloc not in ("", "localhost") or not path.is_absolute():
            raise ConfigInvalid("lake.url", f"{url!r} is not an absolute path")
        if path.exists() and not path.is_dir():
            raise ConfigInvalid("lake.url", f"{path} is not a directory")
    elif place.scheme not in STORES or not place.netloc:
        remedy = "Give an absolute path of a directory, s3://bucket/prefix, or leave it empty."
        raise ConfigInvalid("lake.url", f"{url} is no store that can be opened", remedy=remedy)
    return LakeReader(url, registry)


class LakeReader:
    """Reads a lake's tables. Lives in `async with`."""

    def __init__(self, url: str, registry: Registry) -> None:
        self.url, self._registry = url, registry
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lake")
        self._waiting = 0
        self._newest: dict[str, tuple[str, bytes]] = {}  # by table: the metadata.json that was asked for last
        self._jobs = {job: _JobTables(job, columns) for job, columns in READ.items()}

    async def __aenter__(self) -> LakeReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Do something that blocks, in one of the lake's threads. `LakeUnreadable` if that takes too long."""
        if self._waiting >= LAKE_READS:
            raise Busy("reads of the lake at once", LAKE_READS)
        self._waiting += 1
        try:
            async with self._bounded():
                return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
            raise LakeUnreadable(str(error)) from error
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Whatever the store does, who asks gets an answer."""
        try:
            async with asyncio.timeout(LAKE_SECONDS):
                yield
        except TimeoutError:
            raise LakeUnreadable(f"{self.url} has not answered within {LAKE_SECONDS} s") from None

    # ── what the records say ──────────────────────────────────────────────────────────────────

    @cached_property
    def store(self) -> FileStore:
        """The store. pyarrow takes long to load: ask for it in a thread."""
        from penstock.iceberg.store import open_store

        return open_store(self.url, seconds=STORE_SECONDS)

    async def record(self, job: str) -> TablePointers:
        """What the record of *job* says now; nothing if there is none."""
        record = await self._registry.get(f"lake/{job}")
        return msgspec.json.decode(record.value, type=TablePointers) if record else TablePointers()

    async def ask(self, job: str, question: Callable[[], T]) -> T:
        """Answer a question about the tables of *job* as its record names them now.

        If a file is missing, or seems to be, it is asked again: a long search may have begun before the last commit.
        It is given up when it fails although the record has not changed since it was asked.
        """
        async with self._bounded():
            said = await self.record(job)
            for attempt in range(_ATTEMPTS):
                try:
                    await self._load(job, said)
                    return await self.run(question)
                except (FileNotFoundError, Trimmed) as error:
                    before, said = said, await self.record(job)
                    if attempt and said.tables == before.tables:
                        raise error if isinstance(error, Trimmed) else LakeUnreadable(str(error)) from error
            raise LakeUnreadable(f"the tables of {job} change faster than {self.url} can be read")

    async def _load(self, job: str, said: TablePointers) -> None:
        tables = self._jobs[job]
        async with tables.lock:
            if tables.locations != said.tables:
                await self.run(lambda: tables.load(self.store, said))

    def files(self, job: str, table: str) -> TableFiles:
        """The files of a table, as they were known when the last question began."""
        return self._jobs[job].files[table]

    async def mark(self) -> bytes:
        """`lake.json`, which says whose lake it is; empty if there is none."""

        def read() -> bytes:
            try:
                return self.store.read("lake.json")
            except FileNotFoundError:
                return b""

        return await self.run(read)

    # ── the tables, for the catalog ───────────────────────────────────────────────────────────

    async def tables(self) -> dict[str, str]:
        """Every table by its name, with the location of its metadata.json."""
        records = await self._registry.list("lake/")
        found = [msgspec.json.decode(record.value, type=TablePointers).tables for record in records]
        tables = {name: location for tables in found for name, location in sorted(tables.items())}
        if any(name.startswith(TYPED) for name in tables):  # those that were deleted are removed later, by the pipeline
            declared = {table.key for table in (await declared_tables(self._registry)).values()}
            tables = {name: one for name, one in tables.items() if not name.startswith(TYPED) or name in declared}
        return {shown_name(name): location for name, location in tables.items()}

    async def table(self, name: str) -> tuple[str, bytes] | None:
        """The location of a table's metadata.json, and that file; None if there is no table of that name."""
        location = (await self.tables()).get(name)
        for _ in range(_ATTEMPTS):
            if location is None:
                return None
            try:
                return location, await self._metadata(name, location)
            except FileNotFoundError as error:
                before, location = location, (await self.tables()).get(name)
                if before == location:
                    raise LakeUnreadable(str(error)) from error
        raise LakeUnreadable(f"{name} changes faster than {self.url} can be read")

    async def _metadata(self, name: str, location: str) -> bytes:
        known = self._newest.get(name)
        if known is None or known[0] != location:
            read = await self.run(lambda: self.store.read(self.store.relative(location)))
            known = self._newest[name] = location, read
        return known[1]

    # ── questions about `events` ──────────────────────────────────────────────────────────────

    @cached_property
    def _search(self) -> Search:
        from penstock.engines.lake.search import Search  # in a thread: it loads pyarrow

        return Search(self.store)

    @cached_property
    def _exporting(self) -> ExportRows:
        from penstock.engines.lake.export_rows import ExportRows

        return ExportRows(self._search.rows)

    @property
    def _events(self) -> TableFiles:
        return self.files("events", "events")

    async def _in_slices(self, search: Callable[[], Generator[None, None, T]]) -> T:
        """Carry a search to its end, a slice at a time."""
        sliced = _Sliced(search)
        while not await self.ask("events", sliced.go_on):
            pass
        return cast("T", sliced.found)

    async def covered_upto(self, after: int) -> int:
        """The id up to which the files reach from *after* on, as far as they are whole in the store and can be read."""

        def look() -> int:
            there = {one.path: one.size for one in self.store.list("events/data")}
            whole = (file for file in self._events.all if there.get(file.path) == file.file.size)
            return self._events.readable_upto(after, TableFiles(tuple(whole)).covered_upto(after))

        return await self.ask("events", look)

    async def read(self, patterns: Sequence[str] | None, after: int, upto: int, look: Look) -> tuple[list[Entry], int]:
        """Matching entries with ids in (after, upto], and how far was looked. `Trimmed` at a hole.

        Without patterns it shows every stream, those of the system too.
        """
        wanted = None if patterns is None else tuple(patterns)
        return await self.ask("events", lambda: self._search.read(self._events, wanted, after, upto, look))

    async def begins_after(self, upto: int) -> int:
        """The id after which its entries begin; *upto* if they begin later, or there are none."""
        return await self.ask("events", lambda: min([upto, *(file.lo for file in self._events.cover[:1])]))

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        """Sums over (after, upto], for the plan of an export. `Trimmed` names the first hole."""
        return await self.ask("events", lambda: self._exporting.blocks(self._events, after, upto, step))

    async def export(self, wanted: ExportRange, now_ms: int) -> FoundRows:
        """The first rows of an export, and how far they reach. `Trimmed` at a hole."""
        return await self.ask("events", lambda: self._exporting.next_rows(self._events, wanted, now_ms))

    async def find_index(self, stream: str, index: int) -> int | None:
        """The id of the data entry at *index*; of the stream's very first entry if that is -1."""
        return await self._in_slices(lambda: self._search.find_index(self._events, stream, index))

    async def find_line(self, stream: str, chunk: int, offset: int) -> ChunkLine | None:
        """The line at a byte position or, where none begins there, the last one before it in the chunk."""
        return await self._in_slices(lambda: self._search.find_line(self._events, stream, chunk, offset))

    async def id_before(self, ms: int, upto: int) -> int:
        """The highest id up to *upto* that was published before a time; if there is none, where the lake begins."""
        return await self._in_slices(lambda: self._search.id_before(self._events, ms, upto))


class _JobTables:
    """The tables that one record names, as they were read last."""

    def __init__(self, job: str, columns: dict[str, tuple[str, ...]]) -> None:
        self.job, self._columns = job, columns
        self.lock = asyncio.Lock()
        self.locations: dict[str, str] = {}
        self.files = {table: TableFiles() for table in columns}
        self._planners: dict[str, TablePlanner] = {}

    def load(self, store: FileStore, said: TablePointers) -> None:
        """Read what the record names, as far as it was not read before."""
        from penstock.iceberg.reading import TablePlanner

        files = {}
        for table, columns in self._columns.items():
            planner = self._planners.setdefault(table, TablePlanner(store, columns))
            location = said.tables.get(table)
            same = location == self.locations.get(table)
            known = self.files[table] if same else TableFiles.of(planner.files(location) if location else ())
            files[table] = known
        self.files, self.locations = files, said.tables


class _Sliced(Generic[T]):
    """A search that is carried on in whichever thread is free."""

    def __init__(self, search: Callable[[], Generator[None, None, T]]) -> None:
        self._search = search
        self._steps: Generator[None, None, T] | None = None
        self.found: T | None = None

    def go_on(self) -> bool:
        """Search on for one slice; True when all is done. After an error it begins anew."""
        end = time.monotonic() + SLICE_SECONDS
        steps, self._steps = self._steps or self._search(), None
        try:
            while time.monotonic() < end:
                next(steps)
        except StopIteration as over:
            self.found = over.value
            return True
        self._steps = steps
        return False
