"""The engine in memory: the readable model of the contracts, and what users' tests run on.

It keeps plain lists and dictionaries and looks through them from end to end. What it answers is what
every engine must answer; `tests/contract/` and the property tests compare them with it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from penstock.core.bus import LocalBus
from penstock.core.clock import Clock, WallClock
from penstock.core.export import LogExport
from penstock.core.followers import Follower, Followers
from penstock.core.lookout import Changes, MailboxChange, RecordChange
from penstock.core.names import check_pattern, matches
from penstock.core.registry import NEW
from penstock.core.stamp import check_batch, stamp
from penstock.engines.checks import (
    check_month,
    check_position,
    check_recipient,
    check_record,
    check_room,
    first_answer,
    weight,
)
from penstock.errors import InputInvalid, KeyReused, NotFound, PenstockError, Trimmed, VersionMismatch
from penstock.limits import KEY_SECONDS, MAILBOX_PAGE, PAGE_BYTES, PAGE_ENTRIES
from penstock.values import Appended, Batch, Entry, Head, Item, Kind, MailboxHead, NewItem, Page, Producer, Record, Room

SCAN_ENTRIES = 32_768
"""Entries that one `read_after` looks at."""


class MemoryEngine:
    """Log, mailbox, registry and bus that live as long as the object."""

    def __init__(self, *, node: str = "memory", server: str = "127.0.0.1", clock: Clock | None = None) -> None:
        clock = clock or WallClock()
        self.log = MemoryLog(clock, server)
        self.mailbox = MemoryMailbox(clock)
        self.registry = MemoryRegistry(clock)
        self.bus = LocalBus(node)
        self.export = LogExport(self.log)
        self.changes: Changes | None = None  # alone; nodes of a test that share it have one each
        self.queued = 0
        self.trouble = ""

    async def backup(self, directory: Path) -> object:
        """There is nothing to copy: it lives as long as the process."""
        raise InputInvalid("backup", "the memory engine keeps nothing that could be copied")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None


class MemoryChanges:
    """`core.lookout.Changes` of one of several nodes that share an engine in memory."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._records: dict[str, int] = {}
        self._heads: dict[tuple[str, str], int] = {}
        engine.registry.watchers.append(self._records.__setitem__)
        engine.mailbox.watchers.append(self._heads.__setitem__)

    async def look(self, prefixes: Sequence[str]) -> tuple[list[RecordChange], list[MailboxChange]]:
        records = [RecordChange(*pair) for pair in self._records.items() if pair[0].startswith(tuple(prefixes))]
        heads = [MailboxChange(*name, number) for name, number in self._heads.items()]
        self._records.clear()
        self._heads.clear()
        return records, heads


class MemoryLog:
    """`core.log.Log` as a list of entries."""

    durability = "memory"

    def __init__(self, clock: Clock, server: str) -> None:
        self.server = server
        self._clock = clock
        self._entries: list[Entry] = []
        self._heads: dict[str, Head] = {}
        self._next_id = 1
        self._answers: dict[tuple[str, str, str], tuple[bytes, Appended, int]] = {}
        self._last_sequences: dict[tuple[str, str], tuple[int, Appended]] = {}  # of a subject's producer
        self.followers = Followers()
        self._followed = 0
        self._trimmed_upto = 0

    @property
    def followed(self) -> int:
        return self._followed

    async def newest(self) -> int:
        return self._followed  # nobody else writes, and nobody is told an id before it is followed

    @property
    def trimmed_upto(self) -> int:
        return self._trimmed_upto

    # ── append ─────────────────────────────────────────────────────────────────────────────────

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        try:
            check_batch(batch)
            entries, appended = self._store(batch)
        except (PenstockError, ValueError) as error:
            future.set_exception(error)
        else:
            loop.call_soon(self._acknowledge, entries, appended, future)
        return future

    def follow(self, follower: Follower) -> None:
        self.followers.add(follower)

    def _store(self, batch: Batch) -> tuple[list[Entry], Appended]:
        now_ms = self._clock.now_ms()
        if first := self._first_answer(batch, now_ms):
            return [], replace(first, repeated=True)
        stamped = stamp(batch, self._heads.get, next_id=self._next_id, now_ms=now_ms, server=self.server)
        self._next_id += len(stamped.entries)
        self._entries += stamped.entries
        self._heads |= stamped.heads
        for address, digest in _addresses(batch):
            self._answers[address] = (digest, stamped.appended, now_ms)
        if producer := batch.producer:
            self._last_sequences[producer.subject, producer.name] = (producer.sequence, stamped.appended)
        return stamped.entries, stamped.appended

    def _first_answer(self, batch: Batch, now_ms: int) -> Appended | None:
        """What was answered when this batch came for the first time: kept for a day, a producer's last for ever."""
        if key := batch.key:
            digest, answer = self._answer((key.subject, key.stream, key.key), now_ms)
            if answer and digest != key.digest:
                raise KeyReused(key.key)
            if answer:
                return answer
        if producer := batch.producer:
            sequence, last = self._last_sequences.get((producer.subject, producer.name), (0, None))
            if last and producer.sequence <= sequence:
                return first_answer(batch, producer, self._answer(_address_of(producer), now_ms)[1], sequence, last)
        return None

    def _answer(self, address: tuple[str, str, str], now_ms: int) -> tuple[bytes, Appended | None]:
        digest, answer, made_ms = self._answers.get(address, (b"", None, 0))
        return (digest, answer) if made_ms > now_ms - KEY_SECONDS * 1000 else (b"", None)

    def _acknowledge(self, entries: list[Entry], appended: Appended, future: asyncio.Future[Appended]) -> None:
        if entries:
            self.followers.tell(entries)
            self._followed = entries[-1].id
        if not future.done():
            future.set_result(appended)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────

    async def head(self, stream: str) -> Head | None:
        return self._heads.get(stream)

    async def heads(self, pattern: str, *, after: str = "", limit: int = PAGE_ENTRIES) -> list[Head]:
        check_pattern(pattern)
        names = sorted((name for name in self._heads if matches(pattern, name)), key=str.encode)
        return [self._heads[name] for name in names if name.encode() > after.encode()][:limit]

    async def entry(self, id: int) -> Entry | None:
        found = [entry for entry in self._entries if entry.id == id <= self._followed]
        return next(iter(self._shown(found, meta=True)), None)

    async def read_index(
        self, stream: str, index: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES, meta: bool = False
    ) -> Page:
        head = self._existing(stream)
        found = [(at, entry) for at, entry in self._indexed(head) if at >= index]
        begins_there = bool(found) and found[0][0] == index and found[0][1].size > 0
        if index < head.next_index and not begins_there:
            raise Trimmed(self._trimmed_upto - 1, self._trimmed_upto)
        return self._page(self._shown([entry for _, entry in found], meta=meta), limit, limit_bytes)

    async def read_cursor(
        self, stream: str, chunk: int, offset: int, *, limit: int = PAGE_ENTRIES, limit_bytes: int = PAGE_BYTES
    ) -> Page:
        head = self._existing(stream)
        if not 0 <= chunk <= head.chunk:
            raise NotFound("chunk", f"{stream}:{chunk}", code="chunk_missing")
        if offset < 0:
            raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} is no position", code="cursor_invalid")
        lines = [entry for entry in self._of(stream) if entry.size]
        end = head.offset if chunk == head.chunk else max((e.end for e in lines if e.chunk == chunk), default=None)
        if offset == end:
            return Page((), self._followed, more=False)
        first = next((line for line in lines if (line.chunk, line.offset) == (chunk, offset)), None)
        if first is None:
            self._explain(lines, stream, chunk, offset, end)
        found = [entry for entry in self._of(stream) if first and entry.id >= first.id and entry.chunk == chunk]
        return self._page(self._shown(found, meta=True), limit, limit_bytes)

    async def read_after(
        self,
        patterns: Sequence[str],
        after: int,
        *,
        limit: int = PAGE_ENTRIES,
        limit_bytes: int = PAGE_BYTES,
        meta: bool = False,
        ahead: bool = False,
    ) -> Page:
        wanted = [check_pattern(pattern) for pattern in patterns]
        if after < self._trimmed_upto:
            raise Trimmed(after, self._trimmed_upto)
        begin = bisect_right(self._entries, after, key=lambda entry: entry.id)
        looked = [e for e in self._entries[begin : begin + SCAN_ENTRIES] if e.id <= self._followed]
        found = [e for e in self._shown(looked, meta=meta) if any(matches(p, e.stream) for p in wanted)]
        upto = looked[-1].id if len(looked) == SCAN_ENTRIES else max(after, self._followed)
        entries = _fitting(found, min(limit, PAGE_ENTRIES), min(limit_bytes, PAGE_BYTES))
        if len(entries) < len(found):
            upto = entries[-1].id
        return Page(tuple(entries), upto, more=upto < self._followed)

    async def id_before(self, ms: int) -> int:
        if not self._entries:
            return self._trimmed_upto
        return max((e.id for e in self._entries if e.published_ms < ms and e.id <= self._followed), default=0)

    async def times(self, after: int, limit: int = PAGE_ENTRIES) -> list[tuple[int, int]]:
        begin = bisect_right(self._entries, after, key=lambda entry: entry.id)
        return [(e.id, e.published_ms) for e in self._entries[begin : begin + limit] if e.id <= self._followed]

    def _existing(self, stream: str) -> Head:
        if stream not in self._heads:
            raise NotFound("stream", stream, code="stream_missing")
        return self._heads[stream]

    def _of(self, stream: str) -> list[Entry]:
        return [entry for entry in self._entries if entry.stream == stream and entry.id <= self._followed]

    def _indexed(self, head: Head) -> list[tuple[int, Entry]]:
        """A stream's entries, each with the index that it stands at.

        That is its own; of a meta entry the next data entry's, of a part its first piece's.
        """
        found: list[tuple[int, Entry]] = []
        following = head.next_index
        for entry in reversed(self._of(head.stream)):
            if entry.index is not None:
                following = entry.index
            at = following if entry.size else following - 1
            found.append((at, entry))
        return found[::-1]

    def _explain(self, lines: list[Entry], stream: str, chunk: int, offset: int, end: int | None) -> None:
        """Say why no line begins at a position."""
        if end is None or (lines and (chunk, offset) < (lines[0].chunk, lines[0].offset)) or not lines:
            raise Trimmed(self._trimmed_upto - 1, self._trimmed_upto)
        why = f"is beyond the end at {end}" if offset > end else "is inside a line"
        raise InputInvalid("cursor", f"{stream}:{chunk}:{offset} {why}", code="cursor_invalid")

    def _shown(self, entries: Iterable[Entry], *, meta: bool) -> list[Entry]:
        """Entries as a reader sees them: those whose time has run out as tombstones, without *meta* not at all."""
        now_ms = self._clock.now_ms()
        seen = [_tombstone(entry, Kind.EXPIRED) if _is_over(entry, now_ms) else entry for entry in entries]
        return seen if meta else [entry for entry in seen if entry.kind in (Kind.DATA, Kind.PART)]

    def _page(self, found: list[Entry], limit: int, limit_bytes: int) -> Page:
        """A page of one stream. It never separates an entry from its parts."""
        count = len(_fitting(found, min(limit, PAGE_ENTRIES), min(limit_bytes, PAGE_BYTES)))
        while 0 < count < len(found) and found[count].size == 0:
            count += 1
        more = count < len(found)
        return Page(tuple(found[:count]), found[count - 1].id if more else self._followed, more)

    # ── retention ──────────────────────────────────────────────────────────────────────────────

    async def trim(self, upto: int) -> int:
        upto = min(upto, self._followed)
        before = len(self._entries)
        self._trimmed_upto = max(upto, self._trimmed_upto)
        self._entries = [entry for entry in self._entries if entry.id > upto]
        return before - len(self._entries)

    async def erase(self, ids: Sequence[int]) -> int:
        chosen = {(e.stream, e.index) for e in self._entries if e.id in ids and e.kind is Kind.DATA}
        self._bury(chosen, Kind.ERASED)
        return len(chosen)

    async def expire(self, limit: int = 10_000) -> int:
        now_ms = self._clock.now_ms()
        due = [e for e in self._entries if e.kind is Kind.DATA and _is_over(e, now_ms)][:limit]
        self._bury({(entry.stream, entry.index) for entry in due}, Kind.EXPIRED)
        return len(due)

    def _bury(self, chosen: set[tuple[str, int | None]], kind: Kind) -> None:
        """Turn these data entries, and the parts after them, into tombstones."""
        last: dict[str, int | None] = {}
        for place, entry in enumerate(self._entries):
            if entry.kind is not Kind.PART:
                last[entry.stream] = entry.index
            if (entry.stream, last.get(entry.stream)) in chosen and entry.kind in (Kind.DATA, Kind.PART):
                self._entries[place] = _tombstone(entry, kind)

    async def stored_bytes(self) -> int:
        return sum(len(entry.body) for entry in self._entries)


def _addresses(batch: Batch) -> list[tuple[tuple[str, str, str], bytes]]:
    """Under what the answer to a batch is remembered, with the digest that must come again."""
    found = []
    if key := batch.key:
        found.append(((key.subject, key.stream, key.key), key.digest))
    if batch.producer:
        found.append((_address_of(batch.producer), b""))
    return found


def _address_of(producer: Producer) -> tuple[str, str, str]:
    return (producer.subject, "", f"{producer.name}/{producer.sequence}")


def _is_over(entry: Entry, now_ms: int) -> bool:
    live = entry.kind in (Kind.DATA, Kind.PART)
    return live and entry.expires_ms is not None and entry.expires_ms <= now_ms


def _tombstone(entry: Entry, kind: Kind) -> Entry:
    return replace(entry, kind=kind, type="", attributes="", body=b"")


def _fitting(entries: list[Entry], limit: int, limit_bytes: int) -> list[Entry]:
    """The first entries within both limits; one always fits."""
    total = 0
    for count, entry in enumerate(entries[:limit]):
        total += len(entry.body)
        if count and total > limit_bytes:
            return entries[:count]
    return entries[:limit]


@dataclass(slots=True)
class _Box:
    """One recipient in one month."""

    next_number: int = 1
    position: int = 0
    channels: tuple[str, ...] = ()
    items: dict[int, Item] = field(default_factory=dict)

    def head(self, recipient: str, month: str) -> MailboxHead:
        size = sum(len(item.body) for item in self.items.values())
        return MailboxHead(recipient, month, self.next_number, self.position, self.channels, len(self.items), size)

    def add(self, new: NewItem, now_ms: int) -> Item:
        if new.collapse:
            self.remove(lambda item: (item.channel, item.collapse) == (new.channel, new.collapse))
        item = Item(
            self.next_number, now_ms, new.message_id, new.entry_id, new.body, new.channel, new.collapse, new.attributes,
            new.expires_ms,
        )  # fmt: skip
        self.items[item.number] = item
        self.next_number += 1
        return item

    def without_editions_of(self, new: Sequence[NewItem]) -> list[Item]:
        """What would stay if *new* came: no item that one of them replaces."""
        replaced = {(item.channel, item.collapse) for item in new if item.collapse}
        return [item for item in self.items.values() if (item.channel, item.collapse) not in replaced]

    def remove(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        gone = [item for item in self.items.values() if unwanted(item)]
        for item in gone:
            del self.items[item.number]
        return gone


class MemoryMailbox:
    """`core.mailbox.Mailbox` as dictionaries by month and recipient."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._months: dict[str, dict[str, _Box]] = {}
        self.watchers: list[Callable[[tuple[str, str], int], None]] = []  # hear who, in which month, and how far

    async def put(
        self,
        recipient: str,
        month: str,
        items: Sequence[NewItem],
        *,
        position: int | None = None,
        expect: int | None = None,
        room: Room | None = None,
    ) -> list[Item]:
        check_position(recipient, self._box(recipient, month).position, expect)
        if room is not None:
            left = self._box(recipient, month).without_editions_of(items)
            check_room(recipient, room, len(left) + len(items), weight(left) + weight(items))
        box = self._make(recipient, month)
        box.position = max(box.position, position or 0)
        added = [box.add(new, self._clock.now_ms()) for new in items]
        for watcher in self.watchers:
            watcher((recipient, month), box.next_number)
        return added

    async def take(self, recipient: str, month: str, *, after: int = 0, limit: int = MAILBOX_PAGE) -> list[Item]:
        now_ms = self._clock.now_ms()
        pending = self._box(recipient, month).items.values()
        return [item for item in pending if item.number > after and not _due(item, now_ms)][: min(limit, MAILBOX_PAGE)]

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        return self._box(recipient, month).remove(lambda item: item.number in numbers)

    async def find(self, recipient: str, month: str, message_id: str) -> Item | None:
        pending = self._box(recipient, month).items.values()
        return next((item for item in pending if item.message_id == message_id), None)

    async def edition(self, recipient: str, month: str, channel: str, collapse: str) -> Item | None:
        pending = self._box(recipient, month).items.values()
        return next(
            (item for item in pending if collapse and (item.channel, item.collapse) == (channel, collapse)), None
        )

    async def channels(self, recipient: str, month: str) -> tuple[str, ...]:
        return self._box(recipient, month).channels

    async def head(self, recipient: str, month: str) -> MailboxHead:
        return self._box(recipient, month).head(recipient, month)

    async def set_channels(self, recipient: str, month: str, channels: Sequence[str]) -> None:
        self._make(recipient, month).channels = tuple(dict.fromkeys(channels))

    async def add_channel(self, recipient: str, month: str, channel: str) -> bool:
        box = self._make(recipient, month)
        if channel in box.channels:
            return False
        box.channels = (*box.channels, channel)
        return True

    async def remove_channel(self, recipient: str, month: str, channel: str) -> bool:
        box = self._box(recipient, month)
        if channel not in box.channels:
            return False
        box.channels = tuple(c for c in box.channels if c != channel)
        box.remove(lambda item: item.channel == channel)
        return True

    async def forget(self, recipient: str, month: str) -> int:
        return len(self._of(month).pop(check_recipient(recipient), _Box()).items)

    async def expire(self, month: str, limit: int = 10_000) -> list[tuple[str, Item]]:
        now_ms = self._clock.now_ms()
        boxes = self._of(month).items()
        due = [(recipient, item) for recipient, box in boxes for item in box.items.values() if _due(item, now_ms)]
        for recipient, item in due[:limit]:
            del self._of(month)[recipient].items[item.number]
        return due[:limit]

    async def recipients(self, month: str, *, after: str = "", limit: int = MAILBOX_PAGE) -> list[MailboxHead]:
        boxes = sorted(self._of(month).items(), key=lambda pair: pair[0].encode())
        heads = [box.head(recipient, month) for recipient, box in boxes if recipient.encode() > after.encode()]
        return heads[: min(limit, MAILBOX_PAGE)]

    async def months(self) -> list[str]:
        return sorted(self._months)

    async def make_month(self, month: str) -> bool:
        new = check_month(month) not in self._months
        self._months.setdefault(month, {})
        return new

    async def drop_month(self, month: str) -> bool:
        return self._months.pop(check_month(month), None) is not None

    def _of(self, month: str) -> dict[str, _Box]:
        if check_month(month) not in self._months:
            raise NotFound("month", month)
        return self._months[month]

    def _box(self, recipient: str, month: str) -> _Box:
        """What is there of a recipient; an empty box, not kept, if nothing is."""
        return self._of(month).get(check_recipient(recipient)) or _Box()

    def _make(self, recipient: str, month: str) -> _Box:
        return self._of(month).setdefault(check_recipient(recipient), _Box())


def _due(thing: Item | Record, now_ms: int) -> bool:
    return thing.expires_ms is not None and thing.expires_ms <= now_ms


class MemoryRegistry:
    """`core.registry.Registry` as a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._version = 0
        self.watchers: list[Callable[[str, int], None]] = []  # hear which record has changed, and its version

    async def get(self, key: str) -> Record | None:
        check_record(key)
        record = self._records.get(key)
        return None if record is None or _due(record, self._clock.now_ms()) else record

    async def put(self, key: str, value: bytes, *, expect: int | None = None, expires_ms: int | None = None) -> Record:
        check_record(key, value)
        self._check(key, await self.get(key), expect)
        self._version += 1
        record = self._records[key] = Record(key, value, self._version, expires_ms)
        self._changed(key)
        return record

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        found = await self.get(key)
        self._check(key, found, expect)
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

    def _check(self, key: str, found: Record | None, expect: int | None) -> None:
        actual = found.version if found else NEW
        if expect is not None and expect != actual:
            raise VersionMismatch(key, expect, found.version if found else None)
