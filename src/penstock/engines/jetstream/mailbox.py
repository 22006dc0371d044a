"""Mailboxes on JetStream: one stream a month, so that it can be dropped whole.

    <prefix>.messages_2026_11.<recipient>.head           next number, read position, channels
    <prefix>.messages_2026_11.<recipient>.i.<number>     an item
    <prefix>.messages_2026_11.<recipient>.t.<channel>.<collapse>   the newest edition of an item with a collapse key

A put is one atomic batch: the head under compare-and-set, and the items. That is what keeps the numbers
without a gap over all nodes. To confirm is to remove by sequence, so an acknowledgement of a replaced
edition removes nothing. Numbers live in the head alone; pending is what is there.

A head also says what is pending at most: a put adds to that, and what goes is not taken off. Only a put that would
thereby be refused counts what is there, and so corrects it (`_count`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from penstock.core.clock import Clock
from penstock.core.months import check_month
from penstock.engines.checks import check_position, check_recipient, check_room, weight
from penstock.engines.jetstream.newest_messages import (
    PATIENCE_SECONDS,
    Cell,
    Cells,
    CellsMissing,
    Home,
    Stale,
    Unsure,
    Write,
    stream_names,
)
from penstock.engines.jetstream.subject_tokens import text_of, token
from penstock.errors import EngineGone, NotFound, TooLarge
from penstock.limits import BATCH_ENTRIES, MAILBOX_PAGE
from penstock.values import Item, MailboxHead, NewItem, Room

T = TypeVar("T")
_HEADS = 20_000  # heads that are remembered, so that a put need not read one first
_SCAN_MS = 300_000
_COUNTS = 8  # of one put, whose mailbox others fill meanwhile
_FULL = 10_000  # mailboxes that are known to be too heavy
_WRITES = 8  # the newest writes that a head remembers: how one that nobody answered is recognised
_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder()


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What the head's message holds."""

    next_number: int = 1
    position: int = 0
    channels: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    most: tuple[int, int] | None = None  # items and bytes pending at most; None: heads of former versions do not say


class _Crowded(Exception):
    """By its head there may be no room: the items must be counted."""


class _Counted(msgspec.Struct, frozen=True):
    """What was pending while the head's next number was this, less what a put will replace."""

    next_number: int
    items: int
    bytes: int


class _Known(msgspec.Struct, frozen=True):
    """A head, and the sequence that it was at."""

    sequence: int = 0
    head: _Head = _Head(most=(0, 0))


class _Found(msgspec.Struct, frozen=True):
    """An item, and where it is stored."""

    item: Item
    sequence: int


_heads = msgspec.msgpack.Decoder(_Head)


class JetStreamMailbox:
    """`core.mailbox.Mailbox` over one stream of cells a month."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home, self._clock = home, clock
        self._of: dict[str, Cells] = {}
        self._heads: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._due_ms: dict[str, int] = {}  # when to look for expired items again
        self._full: OrderedDict[tuple[str, str], tuple[int, int, int]] = OrderedDict()  # too heavy: see `_count`

    # ── items ──────────────────────────────────────────────────────────────────────────────────

    async def put(
        self, recipient: str, month: str, items: Sequence[NewItem], *, position: int | None = None,
        expect: int | None = None, room: Room | None = None,
    ) -> list[Item]:  # fmt: skip
        if len(items) >= BATCH_ENTRIES:
            raise TooLarge("items of one put", len(items), BATCH_ENTRIES - 1)
        now_ms, counted, size = self._clock.now_ms(), None, weight(items)

        def change(head: _Head) -> tuple[_Head, list[Item]]:
            check_position(recipient, head.position, expect)
            stored = [_numbered(item, number, now_ms) for number, item in enumerate(items, start=head.next_number)]
            number, place = head.next_number + len(items), max(head.position, position or 0)
            most = _grown(head, counted, len(items), size)
            if room is not None and (most is None or most[0] > room.items or most[1] > room.bytes):
                raise _Crowded
            return msgspec.structs.replace(head, next_number=number, position=place, most=most), stored

        for _ in range(_COUNTS):
            try:
                stored = await self._change(recipient, month, change)
                break
            except _Crowded:
                counted = await self._count(recipient, month, items, cast("Room", room))
        else:
            raise EngineGone("a mailbox kept changing while it was counted")
        due = [item.expires_ms for item in stored if item.expires_ms is not None]
        self._due_ms[month] = min([self._due_ms.get(month, 0), *due])
        return stored

    async def take(self, recipient: str, month: str, *, after: int = 0, limit: int = MAILBOX_PAGE) -> list[Item]:
        now_ms, limit = self._clock.now_ms(), min(limit, MAILBOX_PAGE)
        numbers, editions = await self._pending(recipient, month)
        waiting = sorted({*(n for n in numbers if n > after), *(n for n in editions if n > after)})
        taken: list[Item] = []
        while waiting and len(taken) < limit:
            part, waiting = waiting[: limit - len(taken)], waiting[limit - len(taken) :]
            found = await self._items(recipient, month, part, editions)
            taken += [one.item for one in found if not _due(one.item, now_ms)]
        return taken

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        cells = self._cells(recipient, month)
        wanted = sorted(set(numbers))
        subjects = [_item_subject(recipient, number) for number in wanted]
        found = [_found(cell) for cell in await self._call(month, cells.get_all(subjects))]
        if len(found) < len(wanted):
            editions = await self._editions(recipient, month)
            found += [edition for number, edition in editions.items() if number in wanted]
        return await self._remove(cells, found)

    async def find(self, recipient: str, month: str, message_id: str) -> Item | None:
        items = await self._all(recipient, month)
        return next((one.item for one in items if one.item.message_id == message_id), None)

    async def edition(self, recipient: str, month: str, channel: str, collapse: str) -> Item | None:
        if not collapse:
            return None
        cell = await self._call(
            month, self._cells(recipient, month).get(_edition_subject(recipient, channel, collapse))
        )
        return None if cell is None else _found(cell).item

    async def channels(self, recipient: str, month: str) -> tuple[str, ...]:
        check_recipient(recipient)
        return (await self._read_head(recipient, month)).head.channels

    async def head(self, recipient: str, month: str) -> MailboxHead:
        # The head first. What is put in between has a number beyond it and comes to whoever reads on from there;
        # in the other order the head would count an item that nobody has seen, and nobody would look for it again.
        head = (await self._read_head(recipient, month)).head
        items = [one.item for one in await self._all(recipient, month) if one.item.number < head.next_number]
        size = sum(len(item.body) for item in items)
        return MailboxHead(recipient, month, head.next_number, head.position, head.channels, len(items), size)

    # ── channels and recipients ────────────────────────────────────────────────────────────────

    async def set_channels(self, recipient: str, month: str, channels: Sequence[str]) -> None:
        await self._change_channels(recipient, month, lambda _: tuple(dict.fromkeys(channels)))

    async def add_channel(self, recipient: str, month: str, channel: str) -> bool:
        return await self._change_channels(recipient, month, lambda old: old if channel in old else (*old, channel))

    async def remove_channel(self, recipient: str, month: str, channel: str) -> bool:
        known = await self._read_head(recipient, month)
        if channel not in known.head.channels:
            return False
        # The items first: a crash in between leaves the channel, and whoever asked will ask again.
        gone = [one for one in await self._all(recipient, month) if one.item.channel == channel]
        await self._remove(self._cells(recipient, month), gone)
        return await self._change_channels(recipient, month, lambda old: tuple(c for c in old if c != channel))

    async def _change_channels(
        self, recipient: str, month: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> bool:
        changed = False

        def apply(head: _Head) -> tuple[_Head, list[Item]]:
            nonlocal changed
            channels = change(head.channels)
            changed = channels != head.channels
            return msgspec.structs.replace(head, channels=channels), []

        await self._change(recipient, month, apply)
        return changed

    async def forget(self, recipient: str, month: str) -> int:
        cells = self._cells(recipient, month)
        async with self._turn(recipient, month):
            self._heads.pop((recipient, month), None)
            subjects = await self._call(month, cells.subjects(f"{token(recipient)}.>"))
            if subjects:
                await cells.purge(f"{token(recipient)}.>")
        return sum(not subject.endswith(".head") for subject in subjects)

    async def recipients(self, month: str, *, after: str = "", limit: int = MAILBOX_PAGE) -> list[MailboxHead]:
        subjects = await self._call(month, self._month(month).subjects("*.head"))
        names = [text_of(subject.partition(".")[0]) for subject in subjects]
        wanted = sorted((name for name in names if name.encode() > after.encode()), key=str.encode)
        return [await self.head(name, month) for name in wanted[: min(limit, MAILBOX_PAGE)]]

    # ── expiry and months ──────────────────────────────────────────────────────────────────────

    async def expire(self, month: str, limit: int = 10_000) -> list[tuple[str, Item]]:
        cells, now_ms = self._month(month), self._clock.now_ms()
        if now_ms < self._due_ms.get(month, 0):
            return []
        soonest = await self._call(month, cells.soonest(["*.i.*", "*.t.*.*"], limit + 1))
        due = [(one.subject, one.sequence) for one in soonest[:limit] if one.expires_ms <= now_ms]
        later = [one.expires_ms for one in soonest[len(due) :]]
        self._due_ms[month] = min([*later[:1], now_ms + _SCAN_MS])
        # A scan may be late; what is read now and removed at its sequence was there.
        read = {cell.subject: cell for cell in await cells.get_all(name for name, _ in due)}
        kept = [read[name] for name, seq in due if name in read and read[name].sequence == seq]
        removed = await cells.remove_all(cell.sequence for cell in kept)
        return [
            (text_of(cell.subject.partition(".")[0]), _found(cell).item)
            for cell, gone in zip(kept, removed, strict=True)
            if gone
        ]

    async def months(self) -> list[str]:
        root = f"{self._home.prefix}_messages_"
        return sorted(name.removeprefix(root) for name in await stream_names(self._home) if name.startswith(root))

    async def make_month(self, month: str) -> bool:
        return await self._month(month).make()

    async def drop_month(self, month: str) -> bool:
        for key in [key for key in self._heads if key[1] == month]:
            del self._heads[key]
        self._due_ms.pop(month, None)
        return await self._month(month).drop()

    # ── the parts ──────────────────────────────────────────────────────────────────────────────

    async def _change(
        self, recipient: str, month: str, change: Callable[[_Head], tuple[_Head, list[Item]]]
    ) -> list[Item]:
        """Store a changed head with new items, all at once. One change of a recipient at a time from this node."""
        cells, mark = self._cells(recipient, month), secrets.token_hex(6)
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        async with self._turn(recipient, month):
            known = self._heads.get((recipient, month)) or await self._read_head(recipient, month)
            while asyncio.get_running_loop().time() < deadline:
                new, items = change(known.head)
                new = msgspec.structs.replace(new, writes=(*known.head.writes, mark)[-_WRITES:])
                messages = _messages(recipient, new, items, known.sequence)
                try:
                    sequence = await self._call(month, cells.put(messages, self._clock.now_ms()))
                except (Stale, Unsure):
                    now = await self._read_head(recipient, month)
                    if mark in now.head.writes:  # the attempt that nobody answered was stored
                        return items
                    known = now
                else:
                    self._remember(recipient, month, _Known(sequence, new))
                    return items
        raise EngineGone(f"JetStream did not store a mailbox's change within {PATIENCE_SECONDS:g} s")

    async def _count(self, recipient: str, month: str, new: Sequence[NewItem], room: Room) -> _Counted:
        """What will be pending besides *new*; `MailboxFull` if that is too much.

        Items are counted by their subjects, in one request. Bodies are read only when those are few enough, and not
        again as long as nothing has come and nothing gone.
        """
        head = (await self._read_head(recipient, month)).head
        cells, root = self._cells(recipient, month), token(recipient)
        subjects = {s for s in await self._call(month, cells.subjects(f"{root}.>")) if not s.endswith(".head")}
        subjects -= {_edition_subject(recipient, item.channel, item.collapse) for item in new if item.collapse}
        size = weight(new)
        check_room(recipient, room, len(subjects) + len(new), size)
        next_number, items, pending_bytes = self._full.get((recipient, month), (0, 0, 0))
        if (next_number, items) != (head.next_number, len(subjects)):
            pending_bytes = weight(_found(cell).item for cell in await cells.get_all(subjects))
        if pending_bytes + size > room.bytes:
            self._full[recipient, month] = head.next_number, len(subjects), pending_bytes
            if len(self._full) > _FULL:
                self._full.popitem(last=False)
        check_room(recipient, room, len(subjects) + len(new), pending_bytes + size)
        return _Counted(head.next_number, len(subjects), pending_bytes)

    async def _read_head(self, recipient: str, month: str) -> _Known:
        cell = await self._call(month, self._cells(recipient, month).get(f"{token(recipient)}.head"))
        known = _Known(cell.sequence, _heads.decode(cell.data)) if cell else _Known()
        self._remember(recipient, month, known)
        return known

    def _remember(self, recipient: str, month: str, known: _Known) -> None:
        self._heads[recipient, month] = known
        self._heads.move_to_end((recipient, month))
        if len(self._heads) > _HEADS:
            self._heads.popitem(last=False)

    async def _pending(self, recipient: str, month: str) -> tuple[list[int], dict[int, _Found]]:
        """Numbers of the plain items, and the items with collapse keys by their numbers."""
        cells, root = self._cells(recipient, month), token(recipient)
        subjects = await self._call(month, cells.subjects(f"{root}.>"))
        numbers = [int(s.rpartition(".")[2]) for s in subjects if s.startswith(f"{root}.i.")]
        found = [_found(cell) for cell in await cells.get_all(s for s in subjects if s.startswith(f"{root}.t."))]
        return numbers, {one.item.number: one for one in found}

    async def _editions(self, recipient: str, month: str) -> dict[int, _Found]:
        cells = self._cells(recipient, month)
        subjects = await self._call(month, cells.subjects(f"{token(recipient)}.t.>"))
        found = [_found(cell) for cell in await cells.get_all(subjects)]
        return {one.item.number: one for one in found}

    async def _items(
        self, recipient: str, month: str, numbers: Iterable[int], editions: dict[int, _Found]
    ) -> list[_Found]:
        """The items of these numbers that are still there, ascending."""
        plain = [_item_subject(recipient, number) for number in numbers if number not in editions]
        cells = await self._call(month, self._cells(recipient, month).get_all(plain))
        found = [*(_found(cell) for cell in cells), *(editions[n] for n in numbers if n in editions)]
        return sorted(found, key=lambda one: one.item.number)

    async def _all(self, recipient: str, month: str) -> list[_Found]:
        numbers, editions = await self._pending(recipient, month)
        return await self._items(recipient, month, [*numbers, *editions], editions)

    async def _remove(self, cells: Cells, found: list[_Found]) -> list[Item]:
        found.sort(key=lambda one: one.item.number)
        removed = await cells.remove_all(one.sequence for one in found)
        return [one.item for one, gone in zip(found, removed, strict=True) if gone]

    def _cells(self, recipient: str, month: str) -> Cells:
        check_recipient(recipient)
        return self._month(month)

    def _month(self, month: str) -> Cells:
        if check_month(month) not in self._of:
            self._of[month] = Cells(self._home, f"messages_{month}")
        return self._of[month]

    def _turn(self, recipient: str, month: str) -> AbstractAsyncContextManager[None]:
        return self._turns.setdefault((recipient, month), asyncio.Lock())

    async def _call(self, month: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except CellsMissing:
            raise NotFound("month", month) from None


def _item_subject(recipient: str, number: int) -> str:
    return f"{token(recipient)}.i.{number}"


def _edition_subject(recipient: str, channel: str, collapse: str) -> str:
    return f"{token(recipient)}.t.{token(channel)}.{token(collapse)}"


def _grown(head: _Head, counted: _Counted | None, items: int, size: int) -> tuple[int, int] | None:
    """What is pending at most after a put; a count holds only for the head that it was made beside."""
    most = head.most
    if counted is not None and counted.next_number == head.next_number:
        most = counted.items, counted.bytes
    return None if most is None else (most[0] + items, most[1] + size)


def _messages(recipient: str, head: _Head, items: Sequence[Item], sequence: int) -> list[Write]:
    """A head and items as one batch. Of several editions of one thing only the last is stored."""
    by_subject: dict[str, Write] = {}
    for item in items:
        subject = _item_subject(recipient, item.number)
        if item.collapse:
            subject = _edition_subject(recipient, item.channel, item.collapse)
        by_subject[subject] = Write(subject, _pack(msgspec.structs.astuple(item)), item.expires_ms)
    return [Write(f"{token(recipient)}.head", _pack(head), expect=sequence), *by_subject.values()]


def _found(cell: Cell) -> _Found:
    return _Found(Item(*_unpack.decode(cell.data)), cell.sequence)


def _numbered(item: NewItem, number: int, now_ms: int) -> Item:
    return Item(
        number, now_ms, item.message_id, item.entry_id, item.body, item.channel, item.collapse, item.attributes,
        item.expires_ms,
    )  # fmt: skip


def _due(item: Item, now_ms: int) -> bool:
    return item.expires_ms is not None and item.expires_ms <= now_ms
