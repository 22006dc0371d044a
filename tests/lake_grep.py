"""What somebody would find in a lake's store who unpacks whatever lies there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet

from penstock.iceberg.store import FileStore


def files_with(store: FileStore, wanted: Sequence[bytes], folder: str = "") -> list[str]:
    """Files below *folder* that have any of *wanted*, data and metadata alike: raw, or unpacked."""
    return [one.path for one in store.list(folder) if _holds(store.read(one.path), wanted)]


def _holds(content: bytes, wanted: Sequence[bytes]) -> bool:
    """Whether a file has any of *wanted*: in its bytes, in its pages, or in the blocks of a manifest."""
    texts = [content]
    if content[:4] == b"PAR1":
        file = pa.parquet.ParquetFile(pa.BufferReader(content))
        texts.append(repr(file.read().to_pylist()).encode())
    if content[:3] == b"Obj":
        texts += [repr(list(_blocks(content))).encode()]
    return any(one in text for one in wanted for text in texts)


def _blocks(content: bytes) -> Iterator[bytes]:
    """The inflated blocks of an Avro file: whatever inflates, from any byte on."""
    for start in range(len(content)):
        try:
            made = zlib.decompressobj(-15).decompress(content[start:])
        except zlib.error:
            continue
        if len(made) > 40:
            yield made
