"""Heads of streams: those this node knows, and how to learn of others.

A head comes from the follower, from an append of this node, or from the leader. It may be old as soon as it
is known: an append names the sequence it believes to be its stream's last, and JetStream refuses a stale one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.core.matching import matches
from penstock.engines.jetstream.entry_messages import row
from penstock.engines.jetstream.log_stream import Store
from penstock.values import Head

KNOWN_STREAMS: Final = 200_000
"""Heads in memory, some 400 bytes each. Over it: the oldest are forgotten, and asked for when needed."""

_subscribers = msgspec.msgpack.Decoder(tuple[str, ...])


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """A head, and the sequence of the last message on its subject."""

    head: Head
    seq: int
    batch_end: int  # the sequence at which its batch is complete


class KnownHeads:
    """The heads in memory; each only ever moves forward."""

    def __init__(self, limit: int = KNOWN_STREAMS) -> None:
        self._limit = limit
        self._heads: dict[str, KnownHead] = {}
        self.names: SortedNames | None = None  # made by the first listing

    def get(self, stream: str) -> KnownHead | None:
        return self._heads.get(stream)

    def put(self, known: KnownHead) -> None:
        """Remember a head unless a newer one is known."""
        self.put_all((known,))

    def put_all(self, all_known: Iterable[KnownHead]) -> None:
        """Remember several."""
        heads = self._heads
        for known in all_known:
            stream = known.head.stream
            before = heads.get(stream)
            if before is None:
                self._make_room(stream)
            elif before.seq >= known.seq:
                continue
            heads[stream] = known

    def _make_room(self, stream: str) -> None:
        if len(self._heads) >= self._limit:
            del self._heads[next(iter(self._heads))]
        if self.names is not None:
            self.names.add(stream)

    def moved(self, stream: str, seq: int) -> None:
        """A head message came: only the sequence is new."""
        before = self._heads.get(stream)
        if before is not None and before.seq < seq:
            self._heads[stream] = KnownHead(before.head, seq, seq)

    def forget(self, stream: str) -> None:
        self._heads.pop(stream, None)

    def all_names(self) -> list[str]:
        """The streams whose heads are in memory."""
        return list(self._heads)


class SortedNames:
    """All names of streams, in the order of their bytes."""

    def __init__(self, names: list[str]) -> None:
        self._sorted = sorted({name.encode() for name in names})
        self._all = set(self._sorted)

    def add(self, name: str) -> None:
        encoded = name.encode()
        if encoded not in self._all:
            self._all.add(encoded)
            insort(self._sorted, encoded)

    def page(self, pattern: str, after: str, limit: int) -> list[str]:
        """Names that match, those after *after* only."""
        found: list[str] = []
        for encoded in self._sorted[bisect_right(self._sorted, after.encode()) :] if after else self._sorted:
            if len(found) >= limit:
                break
            name = encoded.decode()
            if matches(pattern, name):
                found.append(name)
        return found


def read_subscribers(data: bytes) -> tuple[str, ...]:
    """The list in a message of an `s` subject."""
    return _subscribers.decode(data[2:])


async def load(store: Store, stream: str) -> KnownHead | None:
    """Ask the leader for a stream's head; None if there is no such stream."""
    while True:
        found = await store.last(store.subjects.entry(stream))
        if found is None:
            return None
        last = row(found.seq, stream, found.data)
        end = last.seq + last.facts.more
        if not last.facts.subscribed:
            return KnownHead(last.head(()), last.seq, end)
        subscribers = await store.last(store.subjects.subscribers(stream))
        again = await store.last(store.subjects.entry(stream))
        # The list belongs to the head only if nothing came in between.
        if subscribers is not None and again is not None and again.seq == found.seq:
            return KnownHead(last.head(read_subscribers(subscribers.data)), last.seq, end)
