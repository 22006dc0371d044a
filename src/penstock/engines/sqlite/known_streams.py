"""What the writer knows of streams: their numbers and heads."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from penstock.values import Head

KNOWN_STREAMS: Final = 100_000
"""Streams held in memory, about 300 bytes each. Over it: those not used lately are read again from the
file when needed. Streams with entries that are not folded yet always stay."""

# One row, whatever the number of streams: each row fetched is a chance to lose the interpreter lock.
_LOAD = """
SELECT json_group_array(json_array(s.number, s.name, ifnull(h.next_index, 0), ifnull(h.chunk, 0), ifnull(h.offset, 0),
                                   json(s.subscribers), ifnull(h.last_id, 0), ifnull(h.last_ms, 0)))
FROM streams s LEFT JOIN heads h ON h.stream = s.number WHERE s.{column} IN (SELECT value FROM json_each(?))
"""
_LOAD_BY_NAME, _LOAD_BY_NUMBER = (_LOAD.format(column=column) for column in ("name", "number"))
_Row = tuple[int, str, int, int, int, tuple[str, ...], int, int]
_rows = msgspec.json.Decoder(list[_Row])


class KnownStream(msgspec.Struct, gc=False):
    """One stream."""

    number: int
    head: Head


class KnownStreams:
    """Streams by name. Only the writer thread changes it; others may `peek`.

    A cache of two generations. A stream that is used moves to the young one. When that is full it becomes the
    old one, and the former old one is dropped, but for streams with entries that are not folded yet.
    """

    def __init__(self, limit: int = KNOWN_STREAMS) -> None:
        self._limit = self._turn_at = limit
        # One tuple, so that a thread that peeks never sees half a turn.
        self._generations: tuple[dict[str, KnownStream], dict[str, KnownStream]] = ({}, {})
        self.folded_upto = 0

    def peek(self, name: str) -> KnownStream | None:
        """The stream if it is in memory; from any thread."""
        young, old = self._generations
        return young.get(name) or old.get(name)

    def get(self, name: str) -> KnownStream | None:
        """The stream if it is in memory."""
        young, old = self._generations
        if found := young.get(name):
            return found
        if found := old.get(name):
            self.add(name, found)
        return found

    def add(self, name: str, known: KnownStream) -> None:
        young, old = self._generations
        young[name] = known
        if len(young) > self._turn_at:
            folded = self.folded_upto
            kept = {n: k for n, k in old.items() if k.head.last_id > folded}
            self._generations = (kept, young)
            self._turn_at = len(kept) + self._limit  # else many that must stay would make every call a turn

    def load(self, connection: sqlite3.Connection, names: list[str]) -> list[KnownStream]:
        """Read streams that are not in memory from the file; return those that exist."""
        found = load_by_name(connection, names)
        for known in found:
            self.add(known.head.stream, known)
        return found


def load_by_name(connection: sqlite3.Connection, names: list[str]) -> list[KnownStream]:
    """Streams as the file has them: without what is not folded yet."""
    return _load(connection, _LOAD_BY_NAME, names)


def load_by_number(connection: sqlite3.Connection, numbers: list[int]) -> list[KnownStream]:
    """As `load_by_name`."""
    return _load(connection, _LOAD_BY_NUMBER, numbers)


def _load(connection: sqlite3.Connection, query: str, values: list[str] | list[int]) -> list[KnownStream]:
    text = connection.execute(query, (msgspec.json.encode(values).decode(),)).fetchone()[0]
    return [
        KnownStream(number, Head(name, next_index, chunk, offset, subscribers, last_id, last_ms))
        for number, name, next_index, chunk, offset, subscribers, last_id, last_ms in _rows.decode(text)
    ]
