"""Puts of many recipients at once, with three statements whatever their number.

SQLite's calls give the interpreter lock away, and beside a busy event loop each return waits for it (entry_rows.py has
the figures). Senders that wait together are stored together anyway, so the puts of one group become one
change of heads, one look at them, and one INSERT.
"""

# ruff: noqa: S608 - only months, which were checked, become part of a statement; values never do

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.engines.sqlite.entry_rows import counts
from penstock.engines.sqlite.mailbox_room import PendingBounds
from penstock.errors import NotFound
from penstock.values import Item, NewItem, Room

ITEM = "number, stored_ms, message_id, entry_id, body, channel, collapse, attributes, expires_ms"
_COLUMNS = 10  # the owner, and those
_ROW = "(" + ",".join("?" * _COLUMNS) + ")"
_heads = msgspec.json.Decoder(list[tuple[str, int, int]])


class Put(msgspec.Struct, frozen=True, gc=False):
    """Items for one recipient; none of them takes another's place."""

    recipient: str
    items: Sequence[NewItem]
    position: int
    now_ms: int
    room: Room | None = None


class GroupedPuts:
    """Stores puts into the tables of one month."""

    def __init__(self, month: str, exists: Callable[[sqlite3.Connection, str], bool], bounds: PendingBounds) -> None:
        self._month, self._exists, self._bounds = month, exists, bounds

    def __call__(self, connection: sqlite3.Connection, puts: Sequence[Put]) -> list[Any]:
        """Store *puts* in their order; a result for each: the items with their numbers, or what was wrong."""
        if not self._exists(connection, self._month):
            return [NotFound("month", self._month) for _ in puts]
        refused = self._bounds.refuse(connection, self._month, puts)
        accepted = [put for place, put in enumerate(puts) if place not in refused] if refused else puts
        heads = self._advance(connection, accepted) if accepted else {}
        values: list[Any] = []
        stored: list[Any] = []
        for place, put in enumerate(puts):
            if place in refused:
                stored.append(refused[place])
                continue
            owner, number = heads[put.recipient]
            heads[put.recipient] = owner, number + len(put.items)
            items = [numbered(item, number + k, put.now_ms) for k, item in enumerate(put.items)]
            for item in items:
                values += (owner, *msgspec.structs.astuple(item))
            stored.append(items)
        self._insert(connection, values)
        return stored

    def _advance(self, connection: sqlite3.Connection, puts: Sequence[Put]) -> dict[str, tuple[int, int]]:
        """Move the heads on, making those that are missing; of each its owner, and the first of the new numbers."""
        wanted: dict[str, list[Any]] = {}
        for put in puts:
            one = wanted.setdefault(put.recipient, [put.recipient, 1, 0])
            one[1] += len(put.items)
            one[2] = max(one[2], put.position)
        change = f"""
            INSERT INTO mailbox_heads_{self._month} (recipient, next_number, position)
            SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
            FROM json_each(?) WHERE true
            ON CONFLICT (recipient) DO UPDATE SET next_number = next_number + excluded.next_number - 1,
                                                  position = max(position, excluded.position)
        """
        connection.execute(change, (msgspec.json.encode(list(wanted.values())).decode(),))
        look = f"""
            SELECT json_group_array(json_array(recipient, owner, next_number)) FROM mailbox_heads_{self._month}
            WHERE recipient IN (SELECT value FROM json_each(?))
        """
        text = connection.execute(look, (msgspec.json.encode(list(wanted)).decode(),)).fetchone()[0]
        return {name: (owner, following - wanted[name][1] + 1) for name, owner, following in _heads.decode(text)}

    def _insert(self, connection: sqlite3.Connection, values: list[Any]) -> None:
        begin = 0
        for count in counts(len(values) // _COLUMNS):
            end = begin + _COLUMNS * count
            rows = ", ".join([_ROW] * count)
            connection.execute(f"INSERT INTO messages_{self._month} (owner, {ITEM}) VALUES {rows}", values[begin:end])
            begin = end


def numbered(item: NewItem, number: int, now_ms: int) -> Item:
    """The item with its place in its mailbox."""
    return Item(
        number, now_ms, item.message_id, item.entry_id, item.body, item.channel, item.collapse, item.attributes,
        item.expires_ms,
    )  # fmt: skip
