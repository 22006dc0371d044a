"""The newest entries of the log in memory: a feed that is no further behind than these needs no read of the disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.core.feed import SLICE_BYTES, Feed, Selected
from penstock.core.matching import Interest
from penstock.core.names import is_exact
from penstock.values import Entry

LOOKED_AT: Final = 256
"""Entries that are looked at for one feed at once, and in one turn of the loop, to find those that match its patterns:
some 10 ms with the worst 64 patterns."""


class RecentEntries:
    """Entries by id and by stream. Every entry after id `after` that this node was given is here: on a worker not all.

    Of older ones, from before the start, only those are here that most feeds want: no meta entries, and no streams
    whose names have a level that begins with `_`.

    Appends are many and feeds that join are few. So entries are sorted by stream only when a feed joins, and the oldest
    quarter goes at once.
    """

    def __init__(self, limit: int, limit_bytes: int, after: int) -> None:
        self._limit, self._limit_bytes = limit, limit_bytes
        self._entries: list[Entry] = []
        self._bytes = 0
        self._sorted = 0  # so many of them are in `_by_stream`
        self._by_stream: dict[str, deque[Entry]] = {}
        self.after = after
        self._preceding = after  # what is older than `after`, and has been read, begins after this id

    def reaches(self, feed: Feed) -> bool:
        """Whether everything is here that a feed wants next."""
        if feed.position >= self.after:
            return True
        ordinary = not feed.meta and not any("/_" in pattern for pattern in feed.patterns)
        return ordinary and feed.position >= self._preceding

    def precede(self, entries: list[Entry], after: int) -> None:
        """Take what ordinary feeds want of the time before the start, if there is room."""
        if self._preceding == self.after:
            self._entries[:0] = entries
            self._bytes += sum([len(entry.body) for entry in entries])
            self._preceding = after
            self._by_stream, self._sorted = {}, 0
            self._drop_oldest()

    def extend(self, entries: Sequence[Entry]) -> None:
        self._entries += entries
        self._bytes += sum([len(entry.body) for entry in entries])
        if len(self._entries) > self._limit + self._limit // 4 or self._bytes > self._limit_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Forget as many as it takes to be within both limits."""
        count = max(0, len(self._entries) - self._limit)
        self._bytes -= sum([len(entry.body) for entry in self._entries[:count]])
        while self._bytes > self._limit_bytes:
            self._bytes -= len(self._entries[count].body)
            count += 1
        if count:
            self._preceding = self._entries[count - 1].id
            self.after = max(self.after, self._preceding)
            for entry in self._entries[: min(count, self._sorted)]:
                self._forget(entry.stream)
            self._sorted = max(0, self._sorted - count)
            del self._entries[:count]

    def _forget(self, stream: str) -> None:
        of_stream = self._by_stream[stream]
        of_stream.popleft()
        if not of_stream:
            del self._by_stream[stream]

    def _sort(self) -> None:
        for entry in self._entries[self._sorted :]:
            of_stream = self._by_stream.get(entry.stream)
            if of_stream is None:
                of_stream = self._by_stream[entry.stream] = deque()
            of_stream.append(entry)
        self._sorted = len(self._entries)

    def select(
        self, patterns: tuple[str, ...], after: int, limit: int, interest: Interest[None] | None = None
    ) -> Selected:
        """The next entries after *after* that match, ascending by id, each once, as many as go at once.

        *interest* has the same patterns; without it, it is made.
        """
        if all(is_exact(pattern) for pattern in patterns):
            self._sort()
            found = [e for name in set(patterns) for e in self._of_stream_after(name, after)]
            return _first_of(found if len(patterns) == 1 else sorted(found, key=_id), limit)
        begin = bisect_right(self._entries, after, key=_id)
        entries = self._entries[begin : begin + LOOKED_AT]
        if not entries:
            return _first_of((), limit)
        find = (interest or interest_in(patterns)).find
        selected = _first_of([entry for entry in entries if find(entry.stream)], limit)
        selected = selected._replace(looked_at=len(entries))
        if selected.complete and begin + len(entries) < len(self._entries):
            return selected._replace(complete=False, upto=entries[-1].id)
        return selected

    def index_of(self, id: int) -> int | None:
        """The index of the entry with this id; None if it is not here, or has none."""
        place = bisect_left(self._entries, id, key=_id)
        entry = self._entries[place] if place < len(self._entries) else None
        return entry.index if entry is not None and entry.id == id else None

    def _of_stream_after(self, name: str, after: int) -> list[Entry]:
        of_stream = self._by_stream.get(name)
        if of_stream is None:
            return []
        found = []
        for entry in reversed(of_stream):
            if entry.id <= after:
                break
            found.append(entry)
        found.reverse()
        return found


def interest_in(patterns: Iterable[str]) -> Interest[None]:
    """To find out whether any of *patterns* covers a name."""
    interest: Interest[None] = Interest()
    for pattern in patterns:
        interest.add(pattern, None)
    return interest


def _first_of(entries: Iterable[Entry], limit: int) -> Selected:
    found: list[Entry] = []
    room, complete = SLICE_BYTES, True
    for entry in entries:
        if found and (len(found) >= limit or room < len(entry.body)):
            complete = False
            break
        found.append(entry)
        room -= len(entry.body)
    return Selected(found, SLICE_BYTES - room, complete, found[-1].id if found else 0)


def _id(entry: Entry) -> int:
    return entry.id
