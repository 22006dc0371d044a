"""The lake as the server reads it: entries by id, by index, by cursor and by time.

    async with open_lake("/var/lib/penstock/lake") as lake:
        entries, upto = await lake.read(("/orders",), 0, 5000, look)

Everything that touches the disk runs in a few threads of its own, with a bounded line before them: a reader
of old entries waits behind other readers of old entries, never in front of a publish. What may take long is
done in slices, and stands in line again after each: a search through the whole lake holds up nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from penstock.engines.lake.files import ChunkLine, Files
from penstock.engines.pages import Look
from penstock.errors import Busy, ConfigInvalid, OperatorError, Trimmed
from penstock.limits import LAKE_READS
from penstock.values import Entry

if TYPE_CHECKING:
    from penstock.engines.lake.search import Search

THREADS: Final = 2
"""Threads: one long replay must not hold up the others."""
SLICE_SECONDS: Final = 0.05
"""How long a search keeps a thread while others wait: a few row groups."""
_ATTEMPTS: Final = 4  # a file that compaction has just moved is found again by listing once more

T = TypeVar("T")


class LakeUnreadable(OperatorError):
    """A file of the lake cannot be read. What it holds is not lost: it may be a disk that is away."""

    code = "lake_unreadable"
    remedy = "Look at the lake's directory; './penstock audit' says which files are damaged."
    retry_after = 5


def open_lake(url: str) -> LakeReader:
    """The lake in a directory. Anything else is refused: commits need a rename that is atomic."""
    path = Path(url.removeprefix("file://"))
    if "://" in str(url) and not url.startswith("file://"):
        why = f"{url} is no directory; the tables are committed by renaming files, which only a file system can do"
        raise ConfigInvalid("lake.url", why, remedy="Give an absolute path of a directory, or leave it empty.")
    if not path.is_absolute():
        raise ConfigInvalid("lake.url", f"{url!r} is not an absolute path")
    if path.exists() and not path.is_dir():
        raise ConfigInvalid("lake.url", f"{path} is not a directory")
    return LakeReader(path)


class LakeReader:
    """Reads `events` below a directory. Lives in `async with`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files = Files(directory, "events")
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lake")
        self._waiting = 0

    async def __aenter__(self) -> LakeReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Do something that blocks, in one of the lake's threads."""
        if self._waiting >= LAKE_READS:
            raise Busy("reads of the lake at once", LAKE_READS)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._attempt, work)
        finally:
            self._waiting -= 1

    async def _in_slices(self, search: Callable[[], Generator[None, None, T]]) -> T:
        """Carry a search to its end, a slice at a time."""
        sliced = _Sliced(search)
        while not await self.run(sliced.go_on):
            pass
        return cast("T", sliced.found)

    def _attempt(self, work: Callable[[], T]) -> T:
        """Do it; list the files anew when one of them was moved away, or seems to be missing."""
        for attempt in range(_ATTEMPTS):
            try:
                return work()
            except (FileNotFoundError, Trimmed) as error:
                if attempt == _ATTEMPTS - 1:
                    raise error if isinstance(error, Trimmed) else LakeUnreadable(str(error)) from error
                self._files.refresh()
            except (OSError, ValueError) as error:  # pyarrow's errors are of these two kinds
                raise LakeUnreadable(str(error)) from error
        raise AssertionError("unreachable")

    @cached_property
    def _search(self) -> Search:
        from penstock.engines.lake.search import Search  # pyarrow takes long to load: here, in a thread

        return Search(self._files)

    # ── questions ─────────────────────────────────────────────────────────────────────────────

    async def covered_upto(self, after: int) -> int:
        """The id up to which the files reach from *after* on, as the disk says now."""

        def look() -> int:
            self._files.refresh()
            return self._files.covered_upto(after)

        return await self.run(look)

    async def read(self, patterns: Sequence[str] | None, after: int, upto: int, look: Look) -> tuple[list[Entry], int]:
        """Matching entries with ids in (after, upto], and how far was looked. `Trimmed` at a hole.

        Without patterns it shows every stream, those of the system too.
        """
        wanted = None if patterns is None else tuple(patterns)
        return await self.run(lambda: self._search.read(wanted, after, upto, look))

    async def find_index(self, stream: str, index: int) -> int | None:
        """The id of the data entry at *index*; of the stream's very first entry if that is -1."""
        return await self._in_slices(lambda: self._search.find_index(stream, index))

    async def find_line(self, stream: str, chunk: int, offset: int) -> ChunkLine | None:
        """The line at a byte position or, where none begins there, the last one before it in the chunk."""
        return await self._in_slices(lambda: self._search.find_line(stream, chunk, offset))

    async def id_before(self, ms: int, upto: int) -> int:
        """The highest id up to *upto* that was published before a time; 0 if there is none."""
        return await self._in_slices(lambda: self._search.id_before(ms, upto))


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
