"""Rows of `events`, read from Parquet by file and row group. Blocks: lives in the lake's threads.

This module loads pyarrow; import it only where the lake is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from penstock.engines.pages import Look, shown
from penstock.iceberg.reading import ColumnBounds
from penstock.iceberg.store import FileStore
from penstock.values import Entry, Kind
from penstock.wire.table_columns import BYTES, EVENT, TEXT, TIME, Column

FOOTERS: Final = 512
"""Footers that are kept: some kilobytes each."""
CACHE_BYTES: Final = 64 * 1024 * 1024
"""Decoded row groups that are kept, so that the next page of a replay decodes nothing."""

KEYS: Final = ("id", "stream", "index", "chunk", "offset", "size")
_OF_ENTRY: Final = tuple(column for column in EVENT if column.field)
ALL: Final = tuple(column.name for column in _OF_ENTRY)
_KINDS: Final = {kind.name.lower(): kind for kind in Kind}
LIVE: Final = pa.array(["data", "part"])

K = TypeVar("K")
V = TypeVar("V")


class Footer(NamedTuple):
    """What a file says about itself."""

    path: str  # below the store's root; no other file ever has it
    metadata: Any
    columns: dict[str, int]


class _Cache(Generic[K, V]):
    """What was used last, up to a weight in all. Several threads may use it."""

    def __init__(self, limit: int, weigh: Callable[[V], int]) -> None:
        self._limit, self._weigh = limit, weigh
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._total = 0
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._total += self._weigh(made)
            while self._total > self._limit and len(self._kept) > 1:
                self._total -= self._weigh(self._kept.popitem(last=False)[1])
        return made


class ParquetRows:
    """Reads files of a store."""

    def __init__(self, store: FileStore, *, footers: int = FOOTERS) -> None:
        self._store = store
        self._footers: _Cache[str, Footer] = _Cache(footers, lambda _: 1)
        self._groups: _Cache[tuple[Any, ...], Any] = _Cache(CACHE_BYTES, lambda table: int(table.nbytes))

    def footer(self, path: str) -> Footer:
        """The footer of a file; `FileNotFoundError` if it is not there any more."""
        return self._footers.get(path, lambda: self._read_footer(path))

    def _read_footer(self, path: str) -> Footer:
        with self._store.files.open_input_file(self._store.place(path)) as file:
            metadata = pq.read_metadata(file)
        return Footer(path, metadata, {name: number for number, name in enumerate(metadata.schema.names)})

    def groups(self, footer: Footer, after: int, upto: int, streams: frozenset[str] | None) -> Iterator[int]:
        """Row groups that may have rows with ids in (after, upto] of these streams."""
        for number in range(footer.metadata.num_row_groups):
            first, last = self.bounds(footer, number, "id") or (0, 2**63 - 1)
            if last <= after or first > upto:
                continue
            names = self.bounds(footer, number, "stream") if streams else None
            if streams and names and not any(names[0] <= name <= names[1] for name in streams):
                continue
            yield number

    def bounds(self, footer: Footer, group: int, column: str) -> tuple[Any, Any] | None:
        """The smallest and the greatest value of a column, if the file says so."""
        statistics = footer.metadata.row_group(group).column(footer.columns[column]).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def column_bounds(self, footer: Footer, group: int, columns: Iterable[str]) -> ColumnBounds:
        """The same of several columns, as far as the file says it."""
        found = ((column, self.bounds(footer, group, column)) for column in columns)
        return ColumnBounds((column, bounds) for column, bounds in found if bounds)

    def table(self, footer: Footer, group: int, columns: Sequence[str]) -> Any:
        """These columns of a row group, decoded; those that the file has."""
        return self._groups.get((footer.path, group, tuple(columns)), lambda: self.read(footer, group, columns))

    def read(self, footer: Footer, group: int, columns: Sequence[str]) -> Any:
        """As `table`, without keeping it in memory: for reads that need each row group once."""
        wanted, place = [name for name in columns if name in footer.columns], self._store.place(footer.path)
        with pq.ParquetFile(place, metadata=footer.metadata, filesystem=self._store.files) as file:
            return file.read_row_group(group, columns=wanted, use_threads=False).combine_chunks()


def matching(table: Any, wants: Callable[[str], bool], after: int, upto: int) -> Any:
    """The places of rows with ids in (after, upto] of streams that are wanted."""
    streams = table.column("stream")
    names = [name for name in pc.unique(streams).to_pylist() if wants(name)]
    if not names:
        return pa.array([], pa.uint64())
    ids = table.column("id")
    inside = pc.and_(pc.greater(ids, after), pc.less_equal(ids, upto))
    return pc.indices_nonzero(pc.and_(inside, pc.is_in(streams, pa.array(names))))


def visible(table: Any, places: Any, look: Look) -> Any:
    """The rows at these places that a reader may see: without *meta*, live data and its parts only."""
    rows = table.take(places)
    return rows if look.meta else rows.filter(pc.fill_null(are_live(rows, look.now_ms), False))


def fitting(rows: Any, room: int, room_bytes: int, *, first: bool) -> int:
    """How many of the first rows fit; the *first* of a page always does."""
    sizes = pc.fill_null(pc.binary_length(rows.column("body")), 0).slice(0, room).to_pylist()
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > room_bytes and (count or not first):
            return count
    return len(sizes)


def are_live(rows: Any, now_ms: int) -> Any:
    """Which rows have a body whose time has not run out, as a mask."""
    expires = pc.cast(rows.column("expires_at"), pa.int64())
    lasting = pc.or_kleene(pc.is_null(expires), pc.greater(expires, now_ms * 1000))
    return pc.and_(pc.is_in(rows.column("kind"), LIVE), lasting)


def entries_of(rows: Any, now_ms: int) -> list[Entry]:
    """Rows as entries; those whose time has run out as tombstones."""
    entries = map(Entry, *(_values(rows, column) for column in _OF_ENTRY))
    return shown(entries, now_ms, meta=True)


def _values(rows: Any, column: Column) -> list[Any]:
    """A column as an entry's field has it."""
    values = rows.column(column.name)
    if column.name == "kind":
        return [_KINDS[name] for name in values.to_pylist()]
    if column.type == TIME:
        values = pc.divide(pc.cast(values, pa.int64()), 1000)
    elif column.type in (TEXT, BYTES):
        values = pc.fill_null(values, "" if column.type == TEXT else b"")
    found: list[Any] = values.to_pylist()
    return found
