"""The typed tables that are declared, as the registry keeps them. The pipeline makes them of `events`.

All are in one record: so the compare-and-set that adds one sees how many there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.core.registry import Registry, change, delete_if
from penstock.values import Record
from penstock.wire.typed_tables import TypedTable

KEY: Final = "typed_tables"
"""Of their record."""

FORMER_PREFIX: Final = "typed_tables/"
"""Of the keys under which each table was once a record of its own."""

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


async def adopt_former_records(registry: Registry) -> None:
    """Take over the tables that an earlier version kept one by one: the pipeline removes what nobody declares."""
    former = await registry.list(FORMER_PREFIX)
    if not former:
        return
    tables = [msgspec.json.decode(record.value, type=TypedTable) for record in former]
    await change(
        registry, KEY, lambda found: encode_tables({table.name: table for table in tables} | decode_tables(found))
    )
    for record in former:
        await delete_if(registry, record.key, record.version)
