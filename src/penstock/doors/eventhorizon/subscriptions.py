"""Who subscribes to what, and what moved: kept in memory, right after every crash.

The truth is in the log: a stream's head lists its subscribers. Looking through all heads at a start would
take as long as the log has streams, so the registry keeps one record per subscription:

    subscribe     registry record, then `Subscribed` in the stream
    unsubscribe   `Unsubscribed` in the stream, then the record goes

A crash between the two leaves a record too many, never one too few; a start checks each against the head.

What moved since the last announcement follows from the log, too: every entry up to the id in the record
`eventhorizon/announced` was announced, and a head says which entry was its last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from penstock.core.log import Log
from penstock.core.registry import Registry, delete_if, each
from penstock.core.wanted_streams import WantedStreams
from penstock.values import Entry, Kind, Record
from penstock.wire.eventhorizon import Cursor, parse_cursor

Wake = Callable[[Cursor], None]
_RECORDS = "eventhorizon/subscribed/"
_ANNOUNCED = "eventhorizon/announced"
_META = Kind.META


class SubscriptionRecord(msgspec.Struct):
    """The registry's record of one stream and one subscriber."""

    stream: str
    id: str

    @property
    def key(self) -> str:
        """Names may be longer than a key."""
        return _RECORDS + hashlib.sha256(f"{self.stream} {self.id}".encode()).hexdigest()[:40]


class Subscriptions:
    """The subscribers of every stream, the newest position of every stream that has some, and who waits for it."""

    def __init__(self, log: Log, registry: Registry, *, alone: bool = True) -> None:
        self._log, self._registry, self._alone = log, registry, alone
        self._ids: dict[str, set[str]] = {}  # by stream
        self._newest: dict[str, Cursor] = {}
        self._streams: dict[str, set[str]] = {}  # by id
        self._waiting: dict[str, list[Wake]] = {}  # by id
        self._touched: set[tuple[str, str]] | None = set()  # while loading: the log has said something newer
        self.moved: dict[str, set[str]] = {}  # by id: streams to announce
        self._wanted = WantedStreams(types=("Subscribed", "Unsubscribed", "SubscriptionActivity"))

    async def load(self) -> None:
        """Read the records, and follow the log from now on."""
        self._log.follow(self._follow, self._wanted)
        announced = await self._registry.get(_ANNOUNCED)
        position = int(announced.value) if announced else 0
        async for record in each(self._registry, _RECORDS):
            found = msgspec.json.decode(record.value, type=SubscriptionRecord)
            self._wanted.add(found.stream)  # before its head is read: nothing comes in between
            await self._load_one(found, position)
            self._wanted.remove(found.stream)
        self._touched = None

    async def _load_one(self, found: SubscriptionRecord, announced: int) -> None:
        head = await self._log.head(found.stream)
        if (found.stream, found.id) in (self._touched or ()):
            return
        if head is None or found.id not in head.subscribers:
            return  # the append never happened, or is about to, by another node
        self._add(found.stream, found.id)
        self._newest.setdefault(found.stream, Cursor(found.stream, head.chunk, head.offset, self._log.server))
        if head.last_id > announced:
            self.moved.setdefault(found.id, set()).add(found.stream)

    # ── what doors ask ─────────────────────────────────────────────────────────────────────────

    def streams(self, id: str) -> frozenset[str]:
        """What *id* is subscribed to."""
        return frozenset(self._streams.get(id, ()))

    def newest(self, stream: str) -> Cursor | None:
        """The end of a stream that somebody is subscribed to."""
        return self._newest.get(stream)

    def watch(self, id: str, wake: Wake) -> None:
        """Call *wake* whenever a stream of *id*, or its own, grows; on the loop.

        Called at once for streams that moved and are not announced yet; others are named in the subscription's stream.
        """
        self._waiting.setdefault(id, []).append(wake)
        self._wanted.add(id)
        for stream in self.moved.get(id, ()):
            wake(self._newest[stream])

    def unwatch(self, id: str, wake: Wake) -> None:
        """Call it no more."""
        self._waiting[id].remove(wake)
        self._wanted.remove(id)
        if not self._waiting[id]:
            del self._waiting[id]

    # ── changes, in an order that survives a crash ─────────────────────────────────────────────

    async def keep(self, stream: str, id: str) -> None:
        """Before `Subscribed` is appended."""
        record = SubscriptionRecord(stream, id)
        await self._registry.put(record.key, msgspec.json.encode(record))

    async def kept(self, stream: str, id: str) -> Record | None:
        """The record, before `Unsubscribed` is appended."""
        return await self._registry.get(SubscriptionRecord(stream, id).key)

    async def drop(self, record: Record) -> None:
        """After `Unsubscribed` was appended; unless somebody has subscribed anew since the record was read."""
        await delete_if(self._registry, record.key, record.version)

    async def announced(self, upto: int) -> None:
        """Everything that moved up to this id is announced durably."""
        await self._registry.put(_ANNOUNCED, str(upto).encode())

    # ── what the log says ──────────────────────────────────────────────────────────────────────

    def _follow(self, entries: Sequence[Entry]) -> None:
        """Take in what was appended. Whoever waits is woken once per stream, for the newest entry."""
        grown: dict[str, Entry] = {}
        for entry in entries:
            if entry.kind is _META and entry.type in ("Subscribed", "Unsubscribed"):
                self._change(entry)
            elif not self._alone and entry.kind is _META and entry.type == "SubscriptionActivity":
                self._announced_elsewhere(entry)
            if entry.stream in self._ids or entry.stream in self._waiting:
                grown[entry.stream] = entry
        for stream, entry in grown.items():
            if stream in self._ids:
                self._grown(entry, self._ids[stream])
            if stream in self._waiting:
                self._wake(stream, entry)

    def _change(self, entry: Entry) -> None:
        id = msgspec.json.decode(entry.body)["subscription_id"]
        if self._touched is not None:
            self._touched.add((entry.stream, id))
        if entry.type == "Subscribed":
            self._add(entry.stream, id)
        else:
            self._remove(entry.stream, id)

    def _announced_elsewhere(self, entry: Entry) -> None:
        """Whichever node announces: what it has announced need not be announced by this one."""
        waiting = self.moved.get(entry.stream)
        for text in msgspec.json.decode(entry.body)["activity"] if waiting else ():
            cursor = parse_cursor(text)
            newest = self._newest.get(cursor.stream)
            if waiting and (newest is None or not newest.ahead_of(cursor)):
                waiting.discard(cursor.stream)
        if waiting is not None and not waiting:
            self.moved.pop(entry.stream, None)

    def _grown(self, entry: Entry, ids: set[str]) -> None:
        self._newest[entry.stream] = Cursor(entry.stream, entry.chunk, entry.end, self._log.server)
        for id in ids:
            self.moved.setdefault(id, set()).add(entry.stream)
            if id in self._waiting:
                self._wake(id, entry)

    def _wake(self, id: str, entry: Entry) -> None:
        cursor = Cursor(entry.stream, entry.chunk, entry.end, self._log.server)
        for wake in self._waiting[id]:
            wake(cursor)

    def _add(self, stream: str, id: str) -> None:
        if stream not in self._ids:
            self._wanted.add(stream)
        self._ids.setdefault(stream, set()).add(id)
        self._streams.setdefault(id, set()).add(stream)

    def _remove(self, stream: str, id: str) -> None:
        had_some = stream in self._ids
        for table, key, value in ((self._ids, stream, id), (self._streams, id, stream), (self.moved, id, stream)):
            if key in table:
                table[key].discard(value)
                if not table[key]:
                    del table[key]
        if had_some and stream not in self._ids:
            self._newest.pop(stream, None)
            self._wanted.remove(stream)
