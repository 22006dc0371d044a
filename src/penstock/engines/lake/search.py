"""Finds entries in the files of the lake. Every call blocks: it runs in one of the lake's threads.

Ids are found by file name and row group. An index or a cursor has no such order over the whole log, but within a
stream it never falls: the files are looked through from the newest on, those without the stream are passed over
by the bounds in their manifests or footers, and the first that holds something older ends the search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, TypeVar

import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.core.matching import matches
from penstock.core.names import is_exact
from penstock.engines.lake import event_rows
from penstock.engines.lake.event_rows import Footer, ParquetRows
from penstock.engines.lake.files import ChunkLine, CoveringFile, TableFiles, Tangle
from penstock.engines.pages import Look
from penstock.errors import Trimmed
from penstock.iceberg.store import FileStore
from penstock.values import Entry

R = TypeVar("R")
SCAN_ROWS: Final = 131_072
"""Rows that one read looks at when nothing matches: some ten milliseconds of two columns."""


Steps = Generator[None, None, R]
"""A search that may be long: after each step others may have the thread."""


class Search:
    """Reads what the files hold."""

    def __init__(self, store: FileStore) -> None:
        self.rows = ParquetRows(store)

    def read(
        self, files: TableFiles, patterns: tuple[str, ...] | None, after: int, upto: int, look: Look
    ) -> tuple[list[Entry], int]:
        """Matching entries with ids in (after, upto], and how far was looked. `Trimmed` at a hole."""
        page = _FoundPage(patterns, look)
        position = after
        while position < upto and not page.full and page.looked < SCAN_ROWS:
            file = files.holding(position + 1)
            if position > after and (file is None or isinstance(file, Tangle)):
                break  # the next read meets the hole, or what cannot be read
            if file is None:
                raise _hole(files, after, upto)
            self._fill(page, file, position, upto)
            position = min(file.hi, upto)
        return page.entries, page.entries[-1].id if page.full else position

    def _fill(self, page: _FoundPage, file: CoveringFile, after: int, upto: int) -> None:
        if page.exact and not any(file.bounds.may_have("stream", stream) for stream in page.exact):
            return
        footer = self.rows.footer(file.path)
        for group in self.rows.groups(footer, after, upto, page.exact):
            places = event_rows.matching(self.rows.table(footer, group, event_rows.KEYS), page.wants, after, upto)
            page.looked += footer.metadata.row_group(group).num_rows
            if len(places):
                page.take(self.rows.table(footer, group, event_rows.ALL), places)
            if page.full:
                return

    def find_index(self, files: TableFiles, stream: str, index: int) -> Steps[int | None]:
        """The id of the data entry at *index*; of the stream's very first entry if that is -1."""
        for table in self._of(stream, files.cover if index < 0 else reversed(files.cover)):
            yield
            if table is None:
                continue
            if index < 0:
                return int(table.column("id")[0].as_py())
            data = table.filter(pc.is_valid(table.column("index")))
            indexes = data.column("index").to_pylist()
            if indexes and indexes[0] <= index:
                place = bisect_left(indexes, index)
                here = place < len(indexes) and indexes[place] == index
                return int(data.column("id")[place].as_py()) if here else None
        return None

    def find_line(self, files: TableFiles, stream: str, chunk: int, offset: int) -> Steps[ChunkLine | None]:
        """The line at a byte position or, where none begins there, the last one before it in the chunk."""
        for table in self._of(stream, reversed(files.cover)):
            yield
            if table is None:
                continue
            lines = table.filter(pc.greater(table.column("size"), 0))
            here = pc.and_(pc.equal(lines.column("chunk"), chunk), pc.less_equal(lines.column("offset"), offset))
            before = lines.filter(here)
            if before.num_rows:
                return ChunkLine(*(before.column(name)[-1].as_py() for name in ("id", "offset", "size")))
            if lines.num_rows and lines.column("chunk")[0].as_py() < chunk:
                return None
        return None

    def _of(self, stream: str, files: Iterable[CoveringFile]) -> Iterator[Any]:
        """The rows of one stream, group by group, in the order in which *files* come: newest or oldest first.

        None for a file or a group that was looked at in vain.
        """
        backwards = isinstance(files, reversed)
        for file in files:
            if not file.bounds.may_have("stream", stream):
                yield None
                continue
            footer = self.rows.footer(file.path)
            groups = list(self.rows.groups(footer, 0, 2**63 - 1, frozenset((stream,))))
            for group in reversed(groups) if backwards else groups:
                table = self.rows.table(footer, group, event_rows.KEYS)
                own = table.filter(pc.equal(table.column("stream"), stream))
                yield own if own.num_rows else None
            if not groups:
                yield None

    def id_before(self, files: TableFiles, ms: int, upto: int) -> Steps[int]:
        """The highest id up to *upto* that was published before a time; if there is none, where the files begin."""
        cover = [file for file in files.cover if file.lo < upto]
        place = bisect_left(cover, ms, key=self._begins_ms)
        # Times hardly ever go back, so the last file that begins before the time holds the answer.
        for file in reversed(cover[:place]):
            yield
            if found := self._last_before(self.rows.footer(file.path), ms, upto):
                return found
        return cover[0].lo if cover else upto

    def _begins_ms(self, file: CoveringFile) -> int:
        if known := file.bounds.get("time"):
            return int(known[0]) // 1000
        footer = self.rows.footer(file.path)
        first = pc.cast(self.rows.table(footer, 0, ("id", "time")).column("time").slice(0, 1), "int64")
        return int(first[0].as_py()) // 1000

    def _last_before(self, footer: Footer, ms: int, upto: int) -> int:
        for group in reversed(range(footer.metadata.num_row_groups)):
            table = self.rows.table(footer, group, ("id", "time"))
            early = pc.less(pc.cast(table.column("time"), "int64"), ms * 1000)
            ids = table.column("id").filter(pc.and_(early, pc.less_equal(table.column("id"), upto)))
            if len(ids):
                return int(pc.max(ids).as_py())
        return 0


def _hole(files: TableFiles, after: int, upto: int) -> Trimmed:
    following = files.next_after(after + 1)
    return Trimmed(after, min(upto, following.lo) if following else upto)


class _FoundPage:
    """What a read has found so far, and the room that is left."""

    def __init__(self, patterns: tuple[str, ...] | None, look: Look) -> None:
        self._patterns, self._look = patterns, look
        self._known: dict[str, bool] = {}
        self._room_bytes = look.limit_bytes
        self.exact = frozenset(patterns) if patterns is not None and all(map(is_exact, patterns)) else None
        self.entries: list[Entry] = []
        self.looked = 0
        self.full = False

    def wants(self, stream: str) -> bool:
        """Whether any pattern covers *stream*."""
        if self._patterns is None:
            return True
        if stream not in self._known:
            self._known[stream] = any(matches(pattern, stream) for pattern in self._patterns)
        return self._known[stream]

    def take(self, table: Any, places: Any) -> None:
        """Add the rows at these places, as far as there is room."""
        look = self._look
        shown = event_rows.visible(table, places, look)
        room = look.limit - len(self.entries)
        count = event_rows.fitting(shown, room, self._room_bytes, first=not self.entries)
        fresh = event_rows.entries_of(shown.slice(0, count), look.now_ms)
        self.entries += fresh
        self._room_bytes -= sum(len(entry.body) for entry in fresh)
        self.full = count < shown.num_rows or len(self.entries) == look.limit
