"""The registry on JetStream: one cell a record, its sequence is the version.

    <prefix>.registry.<level>.<level>…      value as it is; expiry in a header

Sequences of a JetStream stream only rise, also over deletes, so a version is never used twice.

A delete leaves a cell behind for a while that has expired already: so other nodes see that the record has changed
(`changes.py`), and JetStream itself takes the cell away.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict

from penstock.core.clock import Clock
from penstock.core.registry import NEW
from penstock.engines.checks import check_record
from penstock.engines.jetstream.newest_messages import (
    EXPIRES,
    PATIENCE_SECONDS,
    Cell,
    Cells,
    Home,
    Stale,
    Unsure,
    Write,
)
from penstock.engines.jetstream.subject_tokens import key_of, path
from penstock.errors import EngineGone, VersionMismatch
from penstock.limits import PAGE_ENTRIES
from penstock.values import Record

_KNOWN = 50_000  # expiries that are remembered, so that a change of a record need not read it first
_SCAN_MS = 300_000
_MARK = 16  # bytes that tell one write from every other
_DELETED = 0  # the expiry of what was deleted
_DELETED_SECONDS = 10  # for which that can be seen: a node that asks for no changes for so long counts as dead


class JetStreamRegistry:
    """`core.registry.Registry` over one stream of cells."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._cells, self._clock = Cells(home, "registry"), clock
        self._known: OrderedDict[int, int | None] = OrderedDict()  # version → expiry
        self._due_ms = 0  # when to look for expired records again

    async def open(self) -> None:
        """Make the stream, or see that it is as it must be."""
        await self._cells.make()

    async def get(self, key: str) -> Record | None:
        check_record(key)
        cell = await self._cells.get(path(key))
        return self._record(cell) if cell and self._version(cell) else None

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        check_record(key, value)
        mark, deadline = secrets.token_bytes(_MARK), asyncio.get_running_loop().time() + PATIENCE_SECONDS
        at, unsure = await self._begin(key, expect), False
        while asyncio.get_running_loop().time() < deadline:
            message = Write(path(key), mark + value, expires_ms, at)
            try:
                return self._noted(key, value, await self._cells.put([message], self._clock.now_ms()), expires_ms)
            except Stale:
                pass
            except Unsure:
                unsure = True
            cell = await self._cells.get(path(key))
            if cell and cell.data[:_MARK] == mark:  # the attempt that nobody answered was stored
                return self._noted(key, value, cell.sequence, expires_ms)
            found = cell.sequence if cell else 0
            if unsure and expect is not None and found != at:
                raise self._unknown(key)
            if expect is not None and expect != (actual := self._version(cell)):
                raise VersionMismatch(key, expect, actual or None)
            at = found
        raise EngineGone(f"JetStream did not store {key!r} within {PATIENCE_SECONDS:g} s")

    def _unknown(self, key: str) -> EngineGone:
        """Others have changed the record since an attempt that nobody answered: it may have been stored before that.

        A mismatch would say that nobody has ever seen what was to be stored.
        """
        return EngineGone(f"JetStream did not say whether it stored {key!r}, which others have changed by now")

    async def _begin(self, key: str, expect: int | None) -> int:
        """Where the record's cell should be.

        A change that expects nothing is a compare-and-set as well: an attempt that hangs somewhere and
        arrives late must not undo what came after it.
        """
        if expect == NEW:
            return 0
        if expect is None or expect not in self._known:
            cell = await self._cells.get(path(key))
            if expect is None:
                return cell.sequence if cell else 0
            actual = self._version(cell)
        else:
            actual = NEW if self._is_over(self._known[expect]) else expect
        if actual != expect:
            raise VersionMismatch(key, expect, actual or None)
        return expect

    def _version(self, cell: Cell | None) -> int:
        """The version of the record that a cell holds; an expired one counts as absent."""
        return NEW if cell is None or self._is_over(_expiry_of(cell)) else cell.sequence

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        check_record(key)
        mark = secrets.token_bytes(_MARK)
        deadline, unsure = asyncio.get_running_loop().time() + PATIENCE_SECONDS, False
        while asyncio.get_running_loop().time() < deadline:
            cell = await self._cells.get(path(key))
            if cell is not None and cell.data == mark:  # the attempt that nobody answered was stored
                return True
            actual = self._version(cell)
            if expect is not None and expect != actual:
                raise self._unknown(key) if unsure else VersionMismatch(key, expect, actual or None)
            if cell is None or actual == NEW:
                return unsure  # then it may have been this call that has removed it
            deleted = Write(path(key), mark, _DELETED, cell.sequence, net_seconds=_DELETED_SECONDS)
            try:
                await self._cells.put([deleted], self._clock.now_ms())
            except Stale:
                continue
            except Unsure:
                unsure = True
                continue
            return True
        raise EngineGone(f"JetStream did not delete {key!r} within {PATIENCE_SECONDS:g} s")

    async def list(self, prefix: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Record]:
        above = prefix.rpartition("/")[0]
        pattern = f"{path(above)}.>" if "/" in prefix else ">"
        keys = [key_of(subject) for subject in await self._cells.subjects(pattern)]
        wanted = sorted((k for k in keys if k.startswith(prefix) and k.encode() > after.encode()), key=str.encode)
        found: list[Record] = []
        limit = min(limit, PAGE_ENTRIES)
        while wanted and len(found) < limit:
            part, wanted = wanted[: limit - len(found)], wanted[limit - len(found) :]
            cells = [cell for cell in await self._cells.get_all(map(path, part)) if _expiry_of(cell) != _DELETED]
            found += [record for record in map(self._record, cells) if not self._is_over(record.expires_ms)]
        return found

    async def expire(self, limit: int = 10_000) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self._due_ms:
            return 0
        soonest = await self._cells.soonest([">"], limit + 1)
        due = [one.sequence for one in soonest[:limit] if one.expires_ms <= now_ms]
        gone = await self._cells.remove_all(due)
        later = [one.expires_ms for one in soonest[len(due) :]]
        self._due_ms = min([*later[:1], now_ms + _SCAN_MS])
        return sum(gone)

    def _record(self, cell: Cell) -> Record:
        return self._noted(key_of(cell.subject), cell.data[_MARK:], cell.sequence, _expiry_of(cell))

    def _noted(self, key: str, value: bytes, version: int, expires_ms: int | None) -> Record:
        """The record; what is known of its expiry is remembered."""
        self._known[version] = expires_ms
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        if expires_ms is not None:
            self._due_ms = min(self._due_ms, expires_ms)
        return Record(key, value, version, expires_ms)

    def _is_over(self, expires_ms: int | None) -> bool:
        return expires_ms is not None and expires_ms <= self._clock.now_ms()


def _expiry_of(cell: Cell) -> int | None:
    found = cell.headers.get(EXPIRES)
    return None if found is None else int(found)
