"""Files of requests that are ready to be sent: what a task of the sink has made of its rows.

A file is an Arrow stream, one row a request. It is cut and encoded once; whoever publishes it sends the same requests
in the same order, so that their numbers stand for the same rows each time. It lies in a folder or on an object store,
and is known by its whole address, so that another worker can open it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import WriterCommitMessage

from penstock.iceberg.store import FileStore, open_store
from penstock.pipeline.publishing import EncodedRequest, NewEvent, encode, requests

_SCHEMA: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("type", pa.string()),
        ("attributes", pa.string()),
        ("lines", pa.bool_()),
        ("body", pa.large_binary()),
    ]
)
_BUFFER_BYTES: Final = 4 * 1024 * 1024
WINDOW_ROWS: Final = 10_000
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Rows that are sorted by stream together, in memory. A request has rows of one stream, and each request is a durable
write of the server's: rows that go to many streams in turn would be one request each."""


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):
    """What a task has staged."""

    path: str  # the address of its file
    rows: int
    query: str
    partition: int = 0
    order: str = ""  # equal for the same rows in the same order
    content: str = ""  # equal for the same rows in any order


@lru_cache(maxsize=1024)
def _key(kin: tuple[str, str, str]) -> bytes:
    return hashlib.blake2b("\0".join(kin).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _RowsDigest:
    """Tells whether two runs of a task gave the same rows, and in the same order."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._sum = 0

    def add(self, event: NewEvent) -> None:
        """Take a row."""
        found = hashlib.blake2b(event.body, digest_size=8, key=_key(event.kin)).digest()
        self._digests += found
        self._sum += int.from_bytes(found, "big")

    @property
    def order(self) -> str:
        return hashlib.blake2b(self._digests, digest_size=16).hexdigest()

    @property
    def content(self) -> str:
        return f"{len(self._digests) // 8}:{self._sum % 2**64:016x}"


def stage(store: FileStore, batches: Iterator[pa.RecordBatch], stream: str, query: str, partition: int) -> StagedFile:
    """Write the requests that *batches* make to a file of their own, durably."""
    store.make_folder("")
    name, digest, rows = f"{uuid.uuid4().hex}.arrow", _RowsDigest(), 0

    def events() -> Iterator[NewEvent]:
        nonlocal rows
        for batch in batches:
            for event in _events(batch, stream):
                digest.add(event)
                yield event
            rows += batch.num_rows

    with store.files.open_output_stream(store.place(name)) as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
        for group in _groups(encode(request) for request in requests(by_stream(events()))):
            columns = [[getattr(one, name) for one in group] for name in _SCHEMA.names]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    store.sync([name])
    path = store.place(name) if store.is_local else store.location(name)
    return StagedFile(path, rows, query, partition, digest.order, digest.content)


def by_stream(events: Iterable[NewEvent]) -> Iterator[NewEvent]:
    """The same events, those of one stream next to each other within a window. Within a stream their order is kept."""
    window: dict[str, list[NewEvent]] = {}
    rows = size = 0
    for event in events:
        window.setdefault(event.stream, []).append(event)
        rows, size = rows + 1, size + len(event.body)
        if rows >= WINDOW_ROWS or size >= WINDOW_BYTES:
            yield from chain.from_iterable(window.values())
            window, rows, size = {}, 0, 0
    yield from chain.from_iterable(window.values())


def find_staged(path: str) -> tuple[FileStore, str]:
    """The store that a staged file is in, and its name there."""
    folder, _, name = path.rpartition("/")
    return open_store(folder), name


def is_staged(path: str) -> bool:
    """Whether that file can be read here."""
    store, name = find_staged(path)
    return not store.missing([name])


def discard(paths: Iterable[str]) -> None:
    """Remove staged files."""
    for path in paths:
        store, name = find_staged(path)
        store.delete([name])


def staged_requests(path: str) -> Iterator[EncodedRequest]:
    """The requests of a staged file, in order."""
    store, name = find_staged(path)
    with store.files.open_input_file(store.place(name)) as source:
        for batch in pa.ipc.open_stream(source):
            for row in range(batch.num_rows):
                yield EncodedRequest(*(column[row].as_py() for column in batch.columns))


def _groups(encoded: Iterator[EncodedRequest]) -> Iterator[list[EncodedRequest]]:
    """Requests that are written together."""
    group, size = list[EncodedRequest](), 0
    for one in encoded:
        group.append(one)
        size += len(one.body)
        if size >= _BUFFER_BYTES or len(group) >= 1_000:
            yield group
            group, size = [], 0
    if group:
        yield group


def _events(batch: pa.RecordBatch, stream: str) -> Iterator[NewEvent]:
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    nothing = [""] * batch.num_rows
    rows = zip(
        columns.get("stream") or [stream] * batch.num_rows,
        columns["body"],
        columns.get("type") or nothing,
        columns.get("attributes") or nothing,
        strict=True,
    )
    for to, body, type, attributes in rows:
        yield NewEvent(to, body.encode() if isinstance(body, str) else bytes(body or b""), type or "", attributes or "")
