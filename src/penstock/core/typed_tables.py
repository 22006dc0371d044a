"""The typed tables that are declared, as the registry keeps them. The pipeline makes them of `events`."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core.registry import Registry
from penstock.wire.typed_tables import TypedTable

PREFIX: Final = "typed_tables/"
"""Of the keys of their records."""

_decoder = msgspec.json.Decoder(TypedTable)


def decode_table(value: bytes) -> TypedTable:
    """What a record says."""
    return _decoder.decode(value)


async def declared_tables(registry: Registry) -> dict[str, TypedTable]:
    """The tables by their names. There are never more than one page of them (`limits.TYPED_TABLES`)."""
    tables = (decode_table(record.value) for record in await registry.list(PREFIX))
    return {table.name: table for table in tables}
