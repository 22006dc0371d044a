"""The registry in memory: a dictionary."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Clock
from penstock.engines.checks import check_record, check_version
from penstock.limits import PAGE_ENTRIES
from penstock.values import Record


class MemoryRegistry:
    """`core.registry.Registry` as a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._version = 0
        self.watchers: list[Callable[[str, int], None]] = []  # called with the key of a changed record, and its version

    async def get(self, key: str) -> Record | None:
        check_record(key)
        record = self._records.get(key)
        return None if record is None or _due(record, self._clock.now_ms()) else record

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        check_record(key, value)
        check_version(key, await self.get(key), expect)
        self._version += 1
        record = self._records[key] = Record(key, value, self._version, expires_ms)
        self._changed(key)
        return record

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        found = await self.get(key)
        check_version(key, found, expect)
        if self._records.pop(key, None) is not None:
            self._version += 1
            self._changed(key)
        return found is not None

    async def list(self, prefix: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Record]:
        now_ms = self._clock.now_ms()
        keys = sorted((key for key in self._records if key.startswith(prefix)), key=str.encode)
        records = [self._records[key] for key in keys if key.encode() > after.encode()]
        return [record for record in records if not _due(record, now_ms)][: min(limit, PAGE_ENTRIES)]

    async def expire(self, limit: int = 10_000) -> int:
        now_ms = self._clock.now_ms()
        due = [key for key, record in self._records.items() if _due(record, now_ms)][:limit]
        for key in due:
            del self._records[key]
        return len(due)

    def _changed(self, key: str) -> None:
        for watcher in self.watchers:
            watcher(key, self._version)


def _due(record: Record, now_ms: int) -> bool:
    return record.expires_ms is not None and record.expires_ms <= now_ms
