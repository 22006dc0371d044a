"""The contract of the registry: small records, changed by compare-and-set.

Keys are paths (`pushers/7`, `lake/events`). Versions are opaque numbers that rise with every change
of any record and are never used twice, also not after a delete.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from penstock.errors import EngineGone, VersionMismatch
from penstock.limits import PAGE_ENTRIES
from penstock.values import Record

NEW = 0
"""The version to expect of a record that must not exist yet."""


class Registry(Protocol):
    """Small records. Every call sees all that was acknowledged before it began."""

    async def get(self, key: str) -> Record | None:
        """The record, unless there is none or its time has run out."""
        ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        """Store durably and return the record with its new version.

        With *expect* only if that is its version now (`NEW`: only if there is none); else
        `VersionMismatch` and nothing changes. An expired record counts as absent. After `EngineGone` nobody knows: it
        may have been stored, and others may have gone on from it.
        """
        ...

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Remove durably; False if there was none. *expect* as for `put`."""
        ...

    async def list(self, prefix: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Record]:
        """Records whose keys begin with *prefix*, in key order (UTF-8 bytes), those after *after* only.

        A page, of `PAGE_ENTRIES` at most; fewer than *limit* if there are no more. `each` has them all.
        """
        ...

    async def expire(self, limit: int = 10_000) -> int:
        """Remove records whose time has run out; return how many."""
        ...


async def each(registry: Registry, prefix: str, *, after: str = "", page: int = PAGE_ENTRIES) -> AsyncIterator[Record]:
    """All records whose keys begin with *prefix*, in key order, those after *after* only; *page* of them at a time."""
    more = True
    while more:
        found = await registry.list(prefix, after=after, limit=page)
        for record in found:
            yield record
        after, more = found[-1].key if found else "", len(found) == page


# ── changing a record that others change, too ──────────────────────────────────────────────────


class Change(NamedTuple):
    """A record after `change`."""

    record: Record | None
    written: bool  # by that call


async def put_if(registry: Registry, key: str, value: bytes, version: int) -> Record | None:
    """Store if the record is at that version (`NEW`: if there is none); None, and nothing changes, if it is not."""
    try:
        return await registry.put(key, value, expect=version)
    except VersionMismatch:
        return None


async def delete_if(registry: Registry, key: str, version: int) -> bool:
    """Remove the record if it is at that version; whether it was."""
    try:
        return await registry.delete(key, expect=version)
    except VersionMismatch:
        return False


async def change(registry: Registry, key: str, decide: Callable[[Record | None], bytes | None]) -> Change:
    """Store what *decide* makes of the record, however often somebody comes in between; None leaves it as it is.

    *decide* is called again with what the other has stored. It may raise.
    """
    while True:
        found = await registry.get(key)
        value = decide(found)
        if value is None or (found is not None and found.value == value):
            return Change(found, written=False)
        if (record := await put_if(registry, key, value, found.version if found else NEW)) is not None:
            return Change(record, written=True)


async def made_once(registry: Registry, key: str, make: Callable[[], bytes]) -> bytes:
    """The value of a record that is written once, by whoever comes first, and is the same for all from then on."""
    while True:
        if (record := await registry.get(key)) is not None:
            return record.value
        try:
            record = await put_if(registry, key, make(), NEW)
        except EngineGone:  # stored or not: whoever came first, it is there now, unless the engine is gone indeed
            if (record := await registry.get(key)) is None:
                raise
        if record is not None:
            return record.value
