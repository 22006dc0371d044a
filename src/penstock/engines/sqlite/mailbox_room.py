"""Whether there is room in a mailbox, without counting it for each put.

Only the writer stores items, so it can remember an upper bound of what each recipient has pending. A put raises the
bound; a removal does not lower it. The rows are counted only if the bound is unknown or over the limit, and never more
rows than the limit.
"""

# ruff: noqa: S608 - only months, which were checked, become part of a statement; values never do

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from penstock.engines.checks import check_room, weight
from penstock.errors import MailboxFull
from penstock.values import NewItem, Room

_KNOWN = 50_000  # recipients; some 200 bytes each
_weights = msgspec.json.Decoder(list[tuple[str, tuple[int, int]]])


class _Put(Protocol):
    """Items for one recipient."""

    @property
    def recipient(self) -> str: ...
    @property
    def items(self) -> Sequence[NewItem]: ...
    @property
    def room(self) -> Room | None: ...


class PendingBounds:
    """What is pending at most, by month and recipient."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, month: str, put: _Put) -> None:
        """Note a put that is about to be stored; one that then fails makes the sum too high, which a count corrects."""
        key = month, put.recipient
        known = self._most.get(key)
        if known is not None:
            self._most[key] = known[0] + len(put.items), known[1] + weight(put.items)

    def refuse(self, connection: sqlite3.Connection, month: str, puts: Sequence[_Put]) -> dict[int, MailboxFull]:
        """Of *puts*, which are about to be stored in their order, those that there is no room for, by their place."""
        crowded = [put for put in puts if put.room is not None and self._is_crowded(month, put, put.room)]
        if crowded:
            most = max(put.room.items for put in crowded if put.room is not None)
            names = list(dict.fromkeys(put.recipient for put in crowded))
            found = weigh(connection.execute, month, names, most)
            if len(self._most) + len(names) > _KNOWN:
                self._most.clear()
            self._most.update({(month, name): found.get(name, (0, 0)) for name in names})
        refused: dict[int, MailboxFull] = {}
        for place, put in enumerate(puts):
            items, size = self._most.get((month, put.recipient), (0, 0))
            try:
                if put.room is not None:
                    check_room(put.recipient, put.room, items + len(put.items), size + weight(put.items))
                self.add(month, put)
            except MailboxFull as error:
                refused[place] = error
        return refused

    def _is_crowded(self, month: str, put: _Put, room: Room) -> bool:
        known = self._most.get((month, put.recipient))
        if known is None:
            return True
        return known[0] + len(put.items) > room.items or known[1] + weight(put.items) > room.bytes


def weigh(execute: Callable[..., Any], month: str, recipients: Sequence[str], most: int) -> dict[str, tuple[int, int]]:
    """Items and bytes that are pending for each of *recipients*; of none are more than *most* + 1 rows looked at."""
    statement = f"""
        SELECT json_group_array(json_array(recipient, json(
            (SELECT json_array(count(*), ifnull(sum(size), 0)) FROM (
                SELECT length(body) + length(CAST(attributes AS BLOB)) AS size
                FROM messages_{month} WHERE owner = h.owner LIMIT ?2
            ))
        )))
        FROM mailbox_heads_{month} h WHERE recipient IN (SELECT value FROM json_each(?1))
    """
    row = execute(statement, (msgspec.json.encode(list(recipients)).decode(), most + 1)).fetchone()
    return dict(_weights.decode(row[0]))
