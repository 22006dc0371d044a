"""Reads pages of entries as Arrow, in a process of its own. `export.py` starts it and says why.

Memory is bounded without a look at the sizes beforehand, which would cost a fifth of the whole: the
statement leaves large bodies out, and a page that turns out to have one is read again in pieces that are cut
by their sizes. Whether the next page is cut so from the start follows from the last one.

ADBC decides on a column's type by its first values: a column that begins with NULLs must be one of integers.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Final

import adbc_driver_sqlite.dbapi as adbc
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.core import arrow
from penstock.core.export import ExportRange, Selection
from penstock.engines.sqlite.export import DATA, FAILURE, TRAILER, ExportRequest
from penstock.values import Kind
from penstock.wire.table_columns import EVENT, SCHEMA_VERSION, TEXT, TIME

PAGE_BYTES: Final = 2 * 1024 * 1024
"""What a page is meant to hold; a batch is at most four times as much."""
PAGE_ROWS: Final = 8_192
LARGE_BYTES: Final = 4_096
"""Bodies above it are read by size: `PAGE_ROWS` bodies of this size are the most that is read unawares."""
REQUEST_BYTES: Final = 128 * 1024
NAMES: Final = 100_000
"""Stream names in memory. Over it: they are read anew."""

_ALWAYS: Final = ("id", "size", "kind", "expires_ms")
_SQL: Final = {column.name: column.sql for column in EVENT if column.sql}
_TYPES: Final = {column.name: column.type for column in EVENT}
_SMALL_BODY: Final = f"iif(length(body) > {LARGE_BYTES}, x'', body) AS body"
_PAGE = "SELECT {sources} FROM entries WHERE id > {after:d} AND id <= {upto:d} ORDER BY id"
_SIZES = "SELECT id, length(body) FROM entries WHERE id > {after:d} AND id <= {upto:d} ORDER BY id"
_NAMES = "SELECT number, name FROM streams WHERE number IN (SELECT value FROM json_each(?))"
_KINDS: Final = pa.array(arrow.KIND_NAMES, pa.utf8())
_VERSIONS: Final = pa.array([SCHEMA_VERSION] * PAGE_ROWS, pa.int32())
_BODIED: Final = pa.array([Kind.DATA, Kind.PART], pa.int64())


def _number(value: int) -> Any:
    """A constant. pyarrow takes 0.1 ms for a Python number: it looks for a package of dates each time."""
    return pa.scalar(value, pa.int64())


_0, _1, _1000 = (_number(value) for value in (0, 1, 1000))
_META, _EXPIRED = _number(Kind.META), _number(Kind.EXPIRED)
_FALSE, _LENGTH_0 = pa.scalar(False), pa.scalar(0, pa.int32())


class Database:
    """One reading connection."""

    def __init__(self, path: Path) -> None:
        self._connection = adbc.connect(f"{path.as_uri()}?mode=ro")
        self._cursor = self._connection.cursor()
        self._cursor.execute("PRAGMA busy_timeout = 5000")
        self._cursor.fetchall()
        self._cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(PAGE_ROWS)})

    def read(self, query: str, *values: object) -> Any:
        """All rows, as a table. The statement is at its end afterwards, so it holds no snapshot."""
        self._cursor.execute(query, values or None)
        return self._cursor.fetch_arrow_table()

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()


class ExportNames:
    """Stream names by number, and which of them are wanted."""

    def __init__(self, database: Database, selection: Selection) -> None:
        self._database, self._selection = database, selection
        self._names: dict[int, str] = {}
        self._wanted: dict[int, bool] = {}

    def load(self, numbers: list[int]) -> list[str]:
        """The names of these streams."""
        if len(self._names) > NAMES:
            self._names, self._wanted = {}, {}
        missing = [number for number in numbers if number not in self._names]
        if missing:
            table = self._database.read(_NAMES, msgspec.json.encode(missing).decode())
            found = zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True)
            self._names.update(found)
        return [self._names[number] for number in numbers]

    def select(self, table: Any) -> Any:
        """Those rows of *table* whose streams are wanted."""
        if self._selection.patterns is None:
            return table
        numbers = table.column("stream").unique().to_pylist()
        for number, name in zip(numbers, self.load(numbers), strict=True):
            if number not in self._wanted:
                self._wanted[number] = self._selection.wants(name)
        wanted = [number for number in numbers if self._wanted[number]]
        if len(wanted) == len(numbers):
            return table
        return table.filter(pc.is_in(table.column("stream"), value_set=pa.array(wanted, pa.int64())))


class Pages:
    """The rows of one range as record batches, in order."""

    def __init__(self, database: Database, wanted: ExportRange, now_ms: int) -> None:
        self._database, self._wanted = database, wanted
        self._names = ExportNames(database, wanted.selection)
        self._began, self._now_ms = time.monotonic(), now_ms
        self._rows = PAGE_ROWS // 8
        self._by_size = False

    def batches(self) -> Iterator[Any]:
        after, upto = self._wanted.after, self._wanted.upto
        while after < upto:
            end = min(after + self._rows, upto)
            for table in self._tables(after, end):
                yield from self._convert(table)
            after = end

    def _tables(self, after: int, upto: int) -> Iterator[Any]:
        """The rows of a page, in one table if its bodies are small."""
        if not self._by_size:
            table = self._read(after, upto, _SMALL_BODY)
            if "body" not in table.column_names or not _lacks_bodies(table):
                yield table
                return
        yield from self._cut_by_size(after, upto)

    def _cut_by_size(self, after: int, upto: int) -> Iterator[Any]:
        """Read pieces of about a page's bytes. One body is always allowed: it is smaller than a batch."""
        sizes = self._database.read(_SIZES.format(after=after, upto=upto))
        ids, lengths = sizes.column(0).to_pylist(), sizes.column(1).to_pylist()
        self._by_size = any(length > LARGE_BYTES for length in lengths)
        begin, total, last = after, 0, after
        for id, length in zip(ids, lengths, strict=True):
            if total + length > PAGE_BYTES and last > begin:
                yield self._read(begin, last, "body")
                begin, total = last, 0
            total, last = total + length, id
        yield self._read(begin, upto, "body")

    def _read(self, after: int, upto: int, body: str) -> Any:
        wanted = self._wanted
        chosen = [_SQL[column] for column in wanted.columns if column in _SQL]
        sources = list(dict.fromkeys([*_ALWAYS, *chosen]))
        if wanted.selection.patterns is not None and "stream" not in sources:
            sources.append("stream")
        listed = ", ".join(body if source == "body" else source for source in sources)
        return self._database.read(_PAGE.format(sources=listed, after=after, upto=upto))

    def _convert(self, table: Any) -> Iterator[Any]:
        table = self._names.select(table)
        if not table.num_rows:
            return
        now_ms = self._now_ms + int((time.monotonic() - self._began) * 1000)
        batch = PageColumns(table.combine_chunks(), self._names, now_ms).batch(self._wanted.columns)
        self._rows = max(64, min(PAGE_ROWS, PAGE_BYTES * batch.num_rows // max(1, batch.nbytes)))
        yield from arrow.split(batch)


class PageColumns:
    """The columns of an export, made of one page."""

    def __init__(self, table: Any, names: ExportNames, now_ms: int) -> None:
        self._source = {name: _whole(table.column(name)) for name in table.column_names}
        self._rows, self._names, self._now_ms = table.num_rows, names, now_ms
        kinds = self._source["kind"]
        self._expired = self._find_expired(kinds)
        self._kinds = kinds if self._expired is None else pc.if_else(self._expired, _EXPIRED, kinds)
        self._tombstones = pc.max(self._kinds).as_py() >= Kind.EXPIRED

    def batch(self, columns: tuple[str, ...]) -> Any:
        """A record batch with these columns."""
        made = {
            "stream": self._stream, "index": self._index, "kind": self._kind, "body": self._body,
            "schema_version": self._schema_version,
        }  # fmt: skip
        arrays = [made[name]() if name in made else self._plain(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow.schema(columns))

    def _find_expired(self, kinds: Any) -> Any:
        """Entries whose time has come since they were stored; None if there is none."""
        if self._source["expires_ms"].null_count == self._rows:
            return None
        due = pc.fill_null(pc.less_equal(self._source["expires_ms"], _number(self._now_ms)), _FALSE)
        expired = pc.and_(due, pc.is_in(kinds, value_set=_BODIED))
        return expired if pc.any(expired).as_py() else None

    def _plain(self, name: str) -> Any:
        """A column that is in the table as it is, but for the unit of times and the nulls of texts."""
        values = self._source[_SQL[name]]
        if _TYPES[name] == TIME:
            return pc.multiply(values, _1000).cast(arrow.TYPES[name])
        return self._text(values) if _TYPES[name] == TEXT else values

    def _stream(self) -> Any:
        numbers = self._source["stream"].dictionary_encode()
        return pa.array(self._names.load(numbers.dictionary.to_pylist()), pa.utf8()).take(numbers.indices)

    def _index(self) -> Any:
        has_index = pc.and_(pc.not_equal(self._kinds, _META), pc.greater(self._source["size"], _0))
        return _valid_where(self._source["idx"], has_index)

    def _kind(self) -> Any:
        return _KINDS.take(self._kinds)

    def _body(self) -> Any:
        bodies = self._without_expired(self._source["body"])
        return _valid_where(bodies, pc.less(self._kinds, _EXPIRED)) if self._tombstones else bodies

    def _schema_version(self) -> Any:
        return _VERSIONS.slice(0, self._rows)

    def _text(self, values: Any) -> Any:
        """A text column; where there is no text it is null."""
        texts = self._without_expired(values)
        return _valid_where(texts, pc.greater(pc.binary_length(texts), _LENGTH_0))

    def _without_expired(self, values: Any) -> Any:
        # Copied with nothing in their place: a null would only hide the bytes, and they must not leave the server.
        return values if self._expired is None else pc.if_else(self._expired, pa.scalar("", values.type), values)


def _lacks_bodies(table: Any) -> bool:
    """Whether a body may have been left out: it is empty, and neither its line nor its kind says that it is."""
    columns = table.select(["body", "kind", "size"]).combine_chunks()
    empty = pc.equal(pc.binary_length(columns.column("body")), _LENGTH_0)
    said = pc.or_(pc.equal(columns.column("size"), _1), pc.greater_equal(columns.column("kind"), _EXPIRED))
    return bool(pc.any(pc.and_not(empty, said)).as_py())


def _whole(column: Any) -> Any:
    """The one array of a column."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _valid_where(values: Any, valid: Any) -> Any:
    """*values* with nulls where *valid* is false; nothing is copied."""
    _, *buffers = values.buffers()
    return pa.Array.from_buffers(values.type, len(values), [valid.buffers()[1], *buffers])


# ── the process ────────────────────────────────────────────────────────────────────────────────


def answer(path: Path, request: ExportRequest, out: socket.socket) -> None:
    """Write one export to *out*, or say why not. A peer that has gone ends it."""
    with out:
        try:
            _export(path, request, out)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the server must hear of it
            _send(out, FAILURE, f"{type(error).__name__}: {error}".encode())


def _export(path: Path, request: ExportRequest, out: socket.socket) -> None:
    wanted, rows = request.range, request.range.rows_before or 0
    database = Database(path)
    try:
        opening: bytes | None = arrow.opening(wanted.columns) if wanted.rows_before is None else None
        for batch in Pages(database, wanted, request.now_ms).batches():
            if opening:  # not before there is something to show: what fails at once becomes a proper answer
                _send(out, DATA, opening)
                opening = None
            rows += batch.num_rows
            _send(out, DATA, arrow.message(batch))
        if opening:
            _send(out, DATA, opening)
    finally:
        database.close()
    _send(out, TRAILER, arrow.closing(wanted.columns, rows, wanted.upto))


def _send(out: socket.socket, kind: bytes, message: Any) -> None:
    view = memoryview(message)
    out.sendall(kind + len(view).to_bytes(4, "big"))
    out.sendall(view)


def main() -> None:
    """Answer the requests that come through the socket at standard input, each in a thread, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to us as well; the server decides
    path, control = Path(sys.argv[1]), socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 1)
        if not message:
            os._exit(0)  # threads that read have nothing to finish
        request = msgspec.json.decode(message, type=ExportRequest)
        Thread(target=answer, args=(path, request, socket.socket(fileno=descriptors[0])), daemon=True).start()
