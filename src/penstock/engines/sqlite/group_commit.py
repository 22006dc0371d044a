"""One group commit: what the jobs that waited together want to write."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.core.stamp import Stamped, appended_one, stamp, stamp_one
from penstock.engines.sqlite.entry_rows import EntryRows
from penstock.engines.sqlite.idempotency_keys import GroupKeys
from penstock.engines.sqlite.known_streams import KnownStream, KnownStreams
from penstock.engines.sqlite.unfolded_entries import UnfoldedSpots
from penstock.values import Appended, Batch, Entry, Head, Kind, PlainEvent

GROUP_JOBS: Final = 1_024
GROUP_BYTES: Final = 8 * 1024 * 1024
"""What one transaction takes at most: a long one would delay every answer in it."""

_DATA = Kind.DATA


class WriteGroup:
    """Stamps batches one after the other, each against the heads that the earlier ones left.

    Nothing outside it changes until `settle`, so a group whose commit fails is simply forgotten.
    """

    def __init__(
        self, connection: sqlite3.Connection, known: KnownStreams, *, next_id: int, next_number: int, now_ms: int,
        server: str,
    ) -> None:  # fmt: skip
        self._connection, self._known = connection, known
        self.next_id, self.next_number = next_id, next_number
        self._now_ms, self._server = now_ms, server
        self._heads: dict[str, Head] = {}
        self._absent: set[str] = set()  # these were looked for in the file
        self._numbers: dict[str, int] = {}
        self._new: list[tuple[int, str]] = []
        self._subscribers: dict[int, tuple[str, ...]] = {}
        self._keys: GroupKeys | None = None
        self._rows = EntryRows()
        self.entries: list[Entry] = []

    def add_event(self, stream: str, body: bytes) -> Entry | None:
        """As `append` of a batch of this one event; None if it takes more than that."""
        head = self._heads.get(stream)
        one = head and stamp_one(stream, body, head, self.next_id, self._now_ms)
        return self._take_one(*one) if one else None

    def append(self, batch: Batch) -> Appended:
        """Give *batch* its coordinates, or its first answer if it was here before."""
        if len(batch.drafts) == 1 and not (batch.create or batch.expect or batch.key or batch.producer):
            [draft] = batch.drafts
            head = self._heads.get(draft.stream)
            if head is not None and draft.kind is _DATA:
                one = stamp_one(
                    draft.stream, draft.body, head, self.next_id, self._now_ms, draft.type, draft.expires_ms,
                    draft.attributes,
                )  # fmt: skip
                if one is not None:
                    return appended_one(self._take_one(*one))
        if batch.key or batch.producer:
            self._keys = self._keys or GroupKeys(self._connection, self._now_ms)
            if found := self._keys.find(batch):
                return found
        stamped = stamp(batch, self._lookup, next_id=self.next_id, now_ms=self._now_ms, server=self._server)
        self._take(stamped)
        if self._keys and (batch.key or batch.producer):
            self._keys.add(batch, stamped.appended)
        return stamped.appended

    @property
    def is_one_statement(self) -> bool:
        """Only entries, and few enough: the INSERT is a transaction by itself."""
        return not (self._new or self._subscribers or self._keys) and self._rows.statements <= 1

    def write(self) -> None:
        """Write everything, within the caller's transaction."""
        execute = self._connection.execute
        for number, name in self._new:
            execute("INSERT INTO streams (number, name) VALUES (?, ?)", (number, name))
        for number, subscribers in self._subscribers.items():
            encoded = msgspec.json.encode(subscribers).decode()
            execute("UPDATE streams SET subscribers = ? WHERE number = ?", (encoded, number))
        if self._keys:
            self._keys.write()
        self._rows.insert(self._connection)

    def settle(self, recent: UnfoldedSpots) -> None:
        """After the commit: let everyone know the new heads and spots."""
        recent.add(self._rows.spots())
        for name, head in self._heads.items():
            if known := self._known.get(name):
                known.head = head
            else:
                self._known.add(name, KnownStream(self._numbers[name], head))

    def prepare(self, appends: Sequence[PlainEvent | Batch]) -> None:
        """Read the heads of all streams that *appends* name, with one query at most."""
        names = {append[0] for append in appends if isinstance(append, tuple)}
        names.update(draft.stream for append in appends if isinstance(append, Batch) for draft in append.drafts)
        self._load([name for name in names if not self._remember(name)])

    def _lookup(self, name: str) -> Head | None:
        head = self._heads.get(name)
        if head is None and name not in self._absent and not self._remember(name):
            self._load([name])
        return head or self._heads.get(name)

    def _remember(self, name: str) -> bool:
        """Copy a known stream into the group: it may be forgotten out there before we are through."""
        if known := self._known.get(name):
            self._heads[name], self._numbers[name] = known.head, known.number
        return known is not None

    def _load(self, names: list[str]) -> None:
        if names:
            self._absent.update(names)
            for known in self._known.load(self._connection, names):
                name = known.head.stream
                self._heads[name], self._numbers[name] = known.head, known.number
                self._absent.discard(name)

    def _take_one(self, entry: Entry, head: Head) -> Entry:
        """`_take`, for what nearly every batch is: one event for a known stream."""
        stream = entry.stream
        self._rows.add(entry, self._numbers[stream], entry.index)
        self._heads[stream] = head
        self.entries.append(entry)
        self.next_id += 1
        return entry

    def _take(self, stamped: Stamped) -> None:
        """Add a stamped batch. From here on it will be stored, unless the whole group fails."""
        entries = stamped.entries
        next_indexes: dict[str, int] = {}
        for entry in entries:
            stream, idx = entry.stream, entry.index
            if idx is None:
                idx = self._next_index(stream, next_indexes) - (entry.kind is Kind.PART)
            else:
                next_indexes[stream] = idx + 1
            self._rows.add(entry, self._numbers.get(stream) or self._new_number(stream), idx)
        for name, head in stamped.heads.items():
            before = self._heads.get(name)
            if head.subscribers != (before.subscribers if before else ()):
                self._subscribers[self._numbers[name]] = head.subscribers
            self._heads[name] = head
        self.entries += entries
        self.next_id += len(entries)

    def _next_index(self, stream: str, next_indexes: dict[str, int]) -> int:
        """The index of the stream's next data entry, in the middle of a batch."""
        found = next_indexes.get(stream)
        if found is None:
            head = self._lookup(stream)
            found = head.next_index if head else 0
        return found

    def _new_number(self, name: str) -> int:
        number = self._numbers[name] = self.next_number
        self.next_number += 1
        self._new.append((number, name))
        return number
