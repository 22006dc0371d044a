"""Mailboxes on SQLite. Each month has two tables of its own, so that it can be dropped whole.

mailbox_heads_2026_11    one row a recipient: next number, read position, channels
messages_2026_11         its pending items, in the order they came; `owner` is the recipient's head
"""

# ruff: noqa: S608 - only months, which were checked, become part of a statement; values never do

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.core.clock import Clock
from penstock.core.months import check_month
from penstock.engines.checks import check_position, check_recipient, check_room
from penstock.engines.checks import weight as weight_of
from penstock.engines.sqlite.mailbox_puts import ITEM, GroupedPuts, Put, numbered
from penstock.engines.sqlite.mailbox_room import PendingBounds, weigh
from penstock.engines.sqlite.reader_threads import Readers
from penstock.engines.sqlite.retention import in_slices
from penstock.engines.sqlite.writer import SqliteWriter
from penstock.errors import EngineGone, NotFound
from penstock.limits import MAILBOX_PAGE
from penstock.values import Item, MailboxHead, NewItem, Room

T = TypeVar("T")
_Channels = tuple[str, ...]

_MAKE = (
    """CREATE TABLE mailbox_heads_{month} (
        owner INTEGER PRIMARY KEY,
        recipient TEXT NOT NULL UNIQUE,
        next_number INTEGER NOT NULL DEFAULT 1,
        position INTEGER NOT NULL DEFAULT 0,
        channels TEXT NOT NULL DEFAULT '[]'
    )""",
    """CREATE TABLE messages_{month} (
        owner INTEGER NOT NULL,
        number INTEGER NOT NULL,
        stored_ms INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        entry_id INTEGER,
        body BLOB NOT NULL,
        channel TEXT NOT NULL,
        collapse TEXT NOT NULL,
        attributes TEXT NOT NULL,
        expires_ms INTEGER
    )""",
    "CREATE UNIQUE INDEX messages_{month}_numbers ON messages_{month} (owner, number)",
    "CREATE INDEX messages_{month}_collapse ON messages_{month} (owner, channel, collapse) WHERE collapse <> ''",
    "CREATE INDEX messages_{month}_expiring ON messages_{month} (expires_ms) WHERE expires_ms IS NOT NULL",
    "INSERT INTO months VALUES ('{month}')",
)
_DROP = (
    "DROP TABLE mailbox_heads_{month}",
    "DROP TABLE messages_{month}",
    "DELETE FROM months WHERE month = '{month}'",
)
_CHOSEN = "number IN (SELECT value FROM json_each(?))"
_HEADS = """
SELECT h.owner, h.recipient, h.next_number, h.position, h.channels, count(m.number), ifnull(sum(length(m.body)), 0)
FROM mailbox_heads_{month} h LEFT JOIN messages_{month} m ON m.owner = h.owner
"""


class SqliteMailbox:
    """`core.mailbox.Mailbox` over the tables of the months."""

    def __init__(self, writer: SqliteWriter, readers: Readers, clock: Clock) -> None:
        self._writer, self._readers, self._clock = writer, readers, clock
        self._made: set[str] = set()  # months that the writer has seen; only its thread touches it
        self._putting: dict[str, GroupedPuts] = {}
        self._bounds = PendingBounds()  # only the writer's thread touches it, too

    def put(
        self, recipient: str, month: str, items: Sequence[NewItem], *, position: int | None = None,
        expect: int | None = None, room: Room | None = None,
    ) -> Awaitable[list[Item]]:  # fmt: skip
        check_recipient(recipient)
        now_ms = self._clock.now_ms()
        weight = sum([len(item.body) for item in items])
        if expect is None and not any(item.collapse for item in items):
            putting = self._putting.get(month) or self._new_putting(month)
            return self._writer.submit_together(putting, Put(recipient, items, position or 0, now_ms, room), weight)
        return self._write(
            month,
            lambda tables: self._put_alone(tables, Put(recipient, items, position or 0, now_ms, room), expect),
            weight,
        )

    def _put_alone(self, tables: _Tables, put: Put, expect: int | None) -> list[Item]:
        """For the writer: a put that replaces something, or that has to be at a position."""
        if put.room is not None:
            pending, size = tables.weigh(put.recipient, put.room.items)
            gone = [edition for item in put.items if (edition := tables.edition(put.recipient, item)) is not None]
            replaced = {item.number: item for item in gone}.values()
            left, size = pending - len(replaced), size - weight_of(replaced)
            check_room(put.recipient, put.room, left + len(put.items), size + weight_of(put.items))
        self._bounds.add(tables.month, put)
        return tables.put(put.recipient, put.items, put.position, put.now_ms, expect)

    def _new_putting(self, month: str) -> GroupedPuts:
        putting = self._putting[check_month(month)] = GroupedPuts(month, self._exists, self._bounds)
        return putting

    async def take(self, recipient: str, month: str, *, after: int = 0, limit: int = MAILBOX_PAGE) -> list[Item]:
        check_recipient(recipient)
        now_ms = self._clock.now_ms()
        return await self._read(month, lambda tables: tables.take(recipient, after, min(limit, MAILBOX_PAGE), now_ms))

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        check_recipient(recipient)
        chosen = msgspec.json.encode(sorted(set(numbers))).decode()
        return await self._write(month, lambda tables: tables.remove(recipient, _CHOSEN, (chosen,)))

    async def find(self, recipient: str, month: str, message_id: str) -> Item | None:
        check_recipient(recipient)
        return await self._read(month, lambda tables: tables.find(recipient, message_id))

    async def edition(self, recipient: str, month: str, channel: str, collapse: str) -> Item | None:
        check_recipient(recipient)
        wanted = NewItem("", channel=channel, collapse=collapse)
        return await self._read(month, lambda tables: tables.edition(recipient, wanted))

    async def channels(self, recipient: str, month: str) -> tuple[str, ...]:
        check_recipient(recipient)
        return await self._read(month, lambda tables: tables.channels(recipient))

    async def head(self, recipient: str, month: str) -> MailboxHead:
        check_recipient(recipient)
        return await self._read(month, lambda tables: tables.head(recipient))

    async def set_channels(self, recipient: str, month: str, channels: Sequence[str]) -> None:
        check_recipient(recipient)
        chosen = tuple(dict.fromkeys(channels))
        await self._write(month, lambda tables: tables.change_channels(recipient, lambda _: chosen))

    async def add_channel(self, recipient: str, month: str, channel: str) -> bool:
        check_recipient(recipient)
        return await self._write(month, lambda tables: tables.add_channel(recipient, channel))

    async def remove_channel(self, recipient: str, month: str, channel: str) -> bool:
        check_recipient(recipient)
        return await self._write(month, lambda tables: tables.remove_channel(recipient, channel))

    async def forget(self, recipient: str, month: str) -> int:
        check_recipient(recipient)
        gone = await self._in_slices(month, lambda tables, count: tables.forget_some(recipient, count))
        return gone + await self._write(month, lambda tables: tables.forget(recipient))

    async def expire(self, month: str, limit: int = 10_000) -> list[tuple[str, Item]]:
        now_ms = self._clock.now_ms()
        gone: list[tuple[str, Item]] = []

        def some(tables: _Tables, count: int) -> int:
            found = tables.expire(now_ms, count)
            gone.extend(found)
            return len(found)

        await self._in_slices(month, some, limit)
        return gone

    async def recipients(self, month: str, *, after: str = "", limit: int = MAILBOX_PAGE) -> list[MailboxHead]:
        return await self._read(month, lambda tables: tables.recipients(after, min(limit, MAILBOX_PAGE)))

    async def months(self) -> list[str]:
        return await self._readers.run(lambda reader: _months(reader.connection))

    async def make_month(self, month: str) -> bool:
        check_month(month)
        return await self._writer.run(lambda connection: _make_month(connection, month))

    async def drop_month(self, month: str) -> bool:
        """Empty it first, a little at a time: to drop a full table takes as long as it is large."""
        if check_month(month) in await self.months():
            await self._in_slices(month, lambda tables, count: tables.empty_some(count))
        return await self._writer.run(lambda connection: self._drop(connection, month))

    async def _in_slices(self, month: str, some: Callable[[_Tables, int], int], limit: int = 1 << 62) -> int:
        check_month(month)
        return await in_slices(
            self._writer, lambda connection, count: some(self._open(connection, month), count), limit
        )

    async def _write(self, month: str, function: Callable[[_Tables], T], weight: int = 0) -> T:
        check_month(month)
        return await self._writer.run(lambda connection: function(self._open(connection, month)), weight)

    def _open(self, connection: sqlite3.Connection, month: str) -> _Tables:
        if not self._exists(connection, month):
            raise NotFound("month", month)
        return _Tables(connection, month)

    def _exists(self, connection: sqlite3.Connection, month: str) -> bool:
        """For the writer. Every statement may cost it a wait for the interpreter lock: what is known is not asked."""
        if month not in self._made and _is_made(connection, month):
            self._made.add(month)
        return month in self._made

    def _drop(self, connection: sqlite3.Connection, month: str) -> bool:
        self._made.discard(month)
        return _drop_month(connection, month)

    async def _read(self, month: str, function: Callable[[_Tables], T]) -> T:
        check_month(month)
        try:
            return await self._readers.run(lambda reader: function(_Tables.open(reader.connection, month)))
        except EngineGone:
            if month not in await self.months():  # dropped between two of its statements
                raise NotFound("month", month) from None
            raise


def _months(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT month FROM months ORDER BY month").fetchall()
    return [_text(row[0]) for row in rows]


def _is_made(connection: sqlite3.Connection, month: str) -> bool:
    return connection.execute("SELECT 1 FROM months WHERE month = ?", (month,)).fetchone() is not None


def _make_month(connection: sqlite3.Connection, month: str) -> bool:
    if month in _months(connection):
        return False
    for statement in _MAKE:
        connection.execute(statement.format(month=month))
    return True


def _drop_month(connection: sqlite3.Connection, month: str) -> bool:
    if month not in _months(connection):
        return False
    for statement in _DROP:
        connection.execute(statement.format(month=month))
    return True


def _text(value: str | bytes) -> str:
    """Readers get texts as bytes, the writer as str."""
    return value.decode() if isinstance(value, bytes) else value


class _ItemRow(NamedTuple):
    owner: int
    next_number: int
    channels: _Channels


class _Tables:
    """The two tables of one month on one connection."""

    def __init__(self, connection: sqlite3.Connection, month: str) -> None:
        self._execute, self._month, self.month = connection.execute, month, month
        self._heads, self._messages = f"mailbox_heads_{month}", f"messages_{month}"

    @classmethod
    def open(cls, connection: sqlite3.Connection, month: str) -> _Tables:
        """`NotFound` if the month was not made."""
        if not _is_made(connection, month):
            raise NotFound("month", month)
        return cls(connection, month)

    def put(
        self, recipient: str, items: Sequence[NewItem], position: int | None, now_ms: int, expect: int | None
    ) -> list[Item]:
        if expect is not None:
            check_position(recipient, self._position(recipient), expect)
        owner, following = self._advance(recipient, len(items), position or 0)
        stored = [numbered(item, number, now_ms) for number, item in enumerate(items, start=following - len(items))]
        for item in stored:
            if item.collapse:
                self._execute(
                    f"DELETE FROM {self._messages} WHERE owner = ? AND channel = ? AND collapse = ? AND collapse <> ''",
                    (owner, item.channel, item.collapse),
                )
            self._execute(
                f"INSERT INTO {self._messages} (owner, {ITEM}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (owner, *msgspec.structs.astuple(item)),
            )
        return stored

    def _advance(self, recipient: str, count: int, position: int) -> tuple[int, int]:
        """Move a head on by *count* numbers, making it if need be; return its owner and the number that follows."""
        statement = f"""
            INSERT INTO {self._heads} (recipient, next_number, position) VALUES (?1, 1 + ?2, ?3)
            ON CONFLICT (recipient) DO UPDATE SET next_number = next_number + ?2, position = max(position, ?3)
            RETURNING owner, next_number
        """
        [(owner, following)] = self._execute(statement, (recipient, count, position)).fetchall()
        return owner, following

    def take(self, recipient: str, after: int, limit: int, now_ms: int) -> list[Item]:
        where = "number > ? AND (expires_ms IS NULL OR expires_ms > ?)"
        return self._items(recipient, where, (after, now_ms), limit)

    def find(self, recipient: str, message_id: str) -> Item | None:
        return next(iter(self._items(recipient, "message_id = ?", (message_id,), 1)), None)

    def edition(self, recipient: str, item: NewItem) -> Item | None:
        """What is there with the channel and collapse key of *item*; found through their index."""
        if not item.collapse:
            return None
        where = "channel = ? AND collapse = ? AND collapse <> ''"
        return next(iter(self._items(recipient, where, (item.channel, item.collapse), 1)), None)

    def weigh(self, recipient: str, most: int) -> tuple[int, int]:
        """How many items are pending and how heavy they are; no more than *most* + 1 of them are looked at."""
        return weigh(self._execute, self.month, [recipient], most).get(recipient, (0, 0))

    def channels(self, recipient: str) -> _Channels:
        row = self._row(recipient)
        return () if row is None else row.channels

    def remove(self, recipient: str, where: str, values: tuple[str, ...]) -> list[Item]:
        """Remove a recipient's items for which *where* holds; return them."""
        statement = f"""
            DELETE FROM {self._messages}
            WHERE owner = (SELECT owner FROM {self._heads} WHERE recipient = ?) AND {where} RETURNING {ITEM}
        """
        gone = [_item(row) for row in self._execute(statement, (recipient, *values)).fetchall()]
        return sorted(gone, key=lambda item: item.number)

    def head(self, recipient: str) -> MailboxHead:
        query = _HEADS.format(month=self._month) + "WHERE h.recipient = ? GROUP BY h.owner"
        row = self._execute(query, (recipient,)).fetchone()
        return _head(row, self._month) if row else MailboxHead(recipient, self._month)

    def recipients(self, after: str, limit: int) -> list[MailboxHead]:
        query = _HEADS.format(month=self._month) + "WHERE h.recipient > ? GROUP BY 2 ORDER BY 2 LIMIT ?"
        return [_head(row, self._month) for row in self._execute(query, (after, limit))]

    def add_channel(self, recipient: str, channel: str) -> bool:
        return self.change_channels(recipient, lambda old: old if channel in old else (*old, channel))

    def remove_channel(self, recipient: str, channel: str) -> bool:
        row = self._row(recipient)
        if row is None or channel not in row.channels:
            return False
        self.change_channels(recipient, lambda old: tuple(name for name in old if name != channel))
        self.remove(recipient, "channel = ?", (channel,))
        return True

    def change_channels(self, recipient: str, change: Callable[[_Channels], _Channels]) -> bool:
        """Store the changed channels; False if they are what they were."""
        row = self._make(recipient)
        new = change(row.channels)
        encoded = msgspec.json.encode(new).decode()
        self._execute(f"UPDATE {self._heads} SET channels = ? WHERE owner = ?", (encoded, row.owner))
        return new != row.channels

    def forget_some(self, recipient: str, count: int) -> int:
        """Delete some of a recipient's items; return how many."""
        statement = f"""
            DELETE FROM {self._messages} WHERE rowid IN (SELECT rowid FROM {self._messages}
            WHERE owner = (SELECT owner FROM {self._heads} WHERE recipient = ?) LIMIT ?)
        """
        return self._execute(statement, (recipient, count)).rowcount

    def empty_some(self, count: int) -> int:
        """Delete some items, and heads when none are left; return how many."""
        for table in (self._messages, self._heads):
            statement = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT ?)"
            if gone := self._execute(statement, (count,)).rowcount:
                return gone
        return 0

    def forget(self, recipient: str) -> int:
        row = self._row(recipient)
        if row is None:
            return 0
        self._execute(f"DELETE FROM {self._heads} WHERE owner = ?", (row.owner,))
        return self._execute(f"DELETE FROM {self._messages} WHERE owner = ?", (row.owner,)).rowcount

    def expire(self, now_ms: int, limit: int) -> list[tuple[str, Item]]:
        query = f"""
            SELECT m.rowid, h.recipient, {", ".join("m." + name for name in ITEM.split(", "))}
            FROM {self._messages} m JOIN {self._heads} h ON h.owner = m.owner
            WHERE m.expires_ms <= ? ORDER BY m.expires_ms LIMIT ?
        """
        rows = self._execute(query, (now_ms, limit)).fetchall()
        chosen = msgspec.json.encode([row[0] for row in rows]).decode()
        self._execute(f"DELETE FROM {self._messages} WHERE rowid IN (SELECT value FROM json_each(?))", (chosen,))
        return [(_text(row[1]), _item(row[2:])) for row in rows]

    def _items(self, recipient: str, where: str, values: tuple[str | int, ...], limit: int) -> list[Item]:
        query = f"""
            SELECT {ITEM} FROM {self._messages}
            WHERE owner = (SELECT owner FROM {self._heads} WHERE recipient = ?) AND {where} ORDER BY number LIMIT ?
        """
        return [_item(row) for row in self._execute(query, (recipient, *values, limit))]

    def _row(self, recipient: str) -> _ItemRow | None:
        query = f"SELECT owner, next_number, channels FROM {self._heads} WHERE recipient = ?"
        row = self._execute(query, (recipient,)).fetchone()
        return _ItemRow(row[0], row[1], msgspec.json.decode(row[2], type=_Channels)) if row else None

    def _position(self, recipient: str) -> int:
        row = self._execute(f"SELECT position FROM {self._heads} WHERE recipient = ?", (recipient,)).fetchone()
        return row[0] if row else 0

    def _make(self, recipient: str) -> _ItemRow:
        if row := self._row(recipient):
            return row
        owner = self._execute(f"INSERT INTO {self._heads} (recipient) VALUES (?)", (recipient,)).lastrowid
        return _ItemRow(owner or 0, 1, ())


def _item(row: tuple[int, int, str, int | None, bytes, str, str, str, int | None]) -> Item:
    number, stored_ms, message_id, entry_id, body, *texts, expires_ms = row
    channel, collapse, attributes = (_text(text) for text in texts)
    return Item(number, stored_ms, _text(message_id), entry_id, body, channel, collapse, attributes, expires_ms)


def _head(row: tuple[int, str, int, int, str, int, int], month: str) -> MailboxHead:
    _, recipient, next_number, position, channels, pending, pending_bytes = row
    who = msgspec.json.decode(channels, type=_Channels)
    return MailboxHead(_text(recipient), month, next_number, position, who, pending, pending_bytes)
