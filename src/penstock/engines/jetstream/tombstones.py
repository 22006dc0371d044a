"""What was erased: entries without bodies, kept beside the log and in every node's memory.

An erased message is deleted, so its place in the log is a hole. A message on the side says what was there,
and is stored before the hole is made; whoever reads sees the tombstone from then on, hole or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import msgspec

from penstock.engines.jetstream.entry_messages import Facts, LogRow
from penstock.engines.jetstream.log_stream import Store


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    stream: str
    facts: Facts


_encode = msgspec.msgpack.Encoder().encode
_lists = msgspec.msgpack.Decoder(list[_Kept])


def encode(tombs: Sequence[LogRow]) -> bytes:
    """The data of one message about erased entries."""
    return _encode([_Kept(tomb.seq, tomb.stream, tomb.facts) for tomb in tombs])


def decode(data: bytes) -> list[LogRow]:
    """What `encode` was given."""
    return [LogRow(kept.seq, kept.stream, kept.facts, b"") for kept in _lists.decode(data)]


class Tombstones:
    """Those above the trim point, by id."""

    def __init__(self) -> None:
        self._rows: dict[int, LogRow] = {}
        self._ids: list[int] = []
        self._by_stream: dict[str, list[int]] = {}
        self._messages: dict[int, int] = {}  # the message that told of some: its sequence, and the highest id in it

    async def load(self, store: Store) -> None:
        """Read all that the log has."""
        found = await store.next(store.subjects.tombstones, 1)
        while found is not None:
            self.add(found.seq, decode(found.data[2:]))
            found = await store.next(store.subjects.tombstones, found.seq + 1)

    def add(self, seq: int, rows: Sequence[LogRow]) -> None:
        """Take what one message told."""
        self._messages[seq] = max((row.seq for row in rows), default=0)
        for row in rows:
            if row.seq not in self._rows:
                self._rows[row.seq] = row
                insort(self._ids, row.seq)
                insort(self._by_stream.setdefault(row.stream, []), row.seq)

    def get(self, id: int) -> LogRow | None:
        return self._rows.get(id)

    def between(self, first: int, last: int, stream: str | None = None) -> list[LogRow]:
        """Those with ids from *first* to *last*, of one stream or of all."""
        ids = self._ids if stream is None else self._by_stream.get(stream, [])
        return [self._rows[id] for id in ids[bisect_left(ids, first) : bisect_right(ids, last)]]

    def drop(self, upto: int) -> list[int]:
        """Forget those up to an id; return the messages that tell of no other."""
        for id in self._ids[: bisect_right(self._ids, upto)]:
            row = self._rows.pop(id)
            self._by_stream[row.stream].remove(id)
        self._ids = self._ids[bisect_right(self._ids, upto) :]
        done = [seq for seq, highest in self._messages.items() if highest <= upto]
        for seq in done:
            del self._messages[seq]
        return done
