"""The contract of the registry: small records, changed by compare-and-set.

Keys are paths (`pushers/7`, `lake/events`). Versions are opaque numbers that rise with every change
of any record and are never used twice, also not after a delete.
"""

from __future__ import annotations

from typing import Protocol

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
        `VersionMismatch` and nothing changes. An expired record counts as absent.
        """
        ...

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Remove durably; False if there was none. *expect* as for `put`."""
        ...

    async def list(self, prefix: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Record]:
        """Records whose keys begin with *prefix*, in key order (UTF-8 bytes), those after *after* only."""
        ...

    async def expire(self, limit: int = 10_000) -> int:
        """Remove records whose time has run out; return how many."""
        ...
