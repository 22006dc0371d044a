"""How fast the log grows, and how soon its entries reach their readers.

No clock is read for this when something is published or delivered. The follower counts entries, and notes one entry
after each flush of the ledger. About five times a second the ledger seals its rows, which say when entries went to the
kernel: a row that covers a noted entry gives a latency, its time less the time of the append. A row stands for all
recipients of one write, with the time of the first of them. Deliveries by door are counted there, too. The number of
entries in a row is the difference of its indexes, if these are still in memory; else the row counts as one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.metering import Histogram
from penstock.core.names import is_system
from penstock.values import Entry

WATCHED_MS: Final = 5000
"""How long deliveries of a noted entry are looked for: as long as the longest that the histogram tells apart."""
WATCHED: Final = 32
"""Entries that are noted at once; a flush each 200 ms makes 25 of them."""
SAMPLED: Final = 64
"""Recipients of a row whose doors are looked at: in a longer row they stand for the others."""


class DoorRecipient(Protocol):
    """Somebody behind a door."""

    @property
    def door(self) -> str: ...


class SealedRow(Protocol):
    """What the ledger knows of entries that went to several recipients."""

    ms: int
    state: str
    stream: str
    first: int
    last: int

    @property
    def who(self) -> Sequence[DoorRecipient]: ...


class Throughput:
    """Counts entries and deliveries, and times a sample of the latter."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.index_of: Callable[[int], int | None] = lambda _: None  # of an entry that is in memory
        self._wanted = True  # the next entry is to be noted
        self._watched: dict[str, list[Entry]] = {}  # noted entries by stream
        self.appended = 0
        self.delivered = 0
        self.by_door: defaultdict[str, float] = defaultdict(float)  # what went out: entries and items of mailboxes
        self.states: Counter[str] = Counter()  # all that was recorded of deliveries, by state
        self.seconds = Histogram()

    def follow(self, entries: Sequence[Entry]) -> None:
        """Hear what was appended."""
        self.appended += len(entries)
        if self._wanted:
            self._note(entries[-1])

    def _note(self, entry: Entry) -> None:
        if entry.index is not None and not is_system(entry.stream):
            self._wanted = False
            self._watched.setdefault(entry.stream, []).append(entry)

    def sealed(self, rows: Sequence[SealedRow]) -> None:
        """Hear what the ledger is about to write down."""
        for row in rows:
            self.states[row.state] += len(row.who)
            if row.state == "sent":
                entries = self._entries_of(row)
                self.delivered += entries * len(row.who)
                self._count_doors(row.who, entries)
                if row.stream in self._watched:
                    self._time(row)
        self._forget(self._clock.now_ms() - WATCHED_MS)

    def sealed_item(self, state: str, door: str) -> None:
        """Hear what the ledger is about to write down of an item of a mailbox."""
        self.states[state] += 1
        if state == "sent":
            self.by_door[door] += 1

    def _entries_of(self, row: SealedRow) -> int:
        if row.first == row.last:
            return 1
        first, last = self.index_of(row.first), self.index_of(row.last)
        return 1 if first is None or last is None else last - first + 1

    def _count_doors(self, who: Sequence[DoorRecipient], entries: int) -> None:
        looked_at = who if len(who) <= SAMPLED else who[:: len(who) // SAMPLED]
        weight = entries * len(who) / len(looked_at)
        for one in looked_at:
            self.by_door[one.door] += weight

    def _time(self, row: SealedRow) -> None:
        for entry in self._watched[row.stream]:
            if row.first <= entry.id <= row.last:
                self.seconds.observe(max(0, row.ms - entry.published_ms) / 1000, len(row.who))

    def _forget(self, before_ms: int) -> None:
        kept = [entry for noted in self._watched.values() for entry in noted if entry.published_ms >= before_ms]
        self._watched = {}
        for entry in kept:
            self._watched.setdefault(entry.stream, []).append(entry)
        self._wanted = len(kept) < WATCHED
