"""The typed tables that are declared, as the registry keeps them. The pipeline makes them of `events`.

All are in one record: so the compare-and-set that adds one sees how many there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.core.registry import Registry
from penstock.values import Record
from penstock.wire.typed_tables import TypedTable

KEY: Final = "typed_tables"
"""Of their record."""

_decoder = msgspec.json.Decoder(list[TypedTable])


def decode_tables(record: Record | None) -> dict[str, TypedTable]:
    """The tables by their names, in their order."""
    return {table.name: table for table in _decoder.decode(zlib.decompress(record.value))} if record else {}


def encode_tables(tables: Mapping[str, TypedTable]) -> bytes:
    """The record of these tables, compressed: 64 tables of 256 columns are 1 MB of JSON, which a record cannot hold."""
    return zlib.compress(msgspec.json.encode([tables[name] for name in sorted(tables)]))


async def declared_tables(registry: Registry) -> dict[str, TypedTable]:
    """The tables by their names."""
    return decode_tables(await registry.get(KEY))
