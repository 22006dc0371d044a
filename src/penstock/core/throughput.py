"""How fast the log grows, and how soon its entries reach their readers.

Neither a publish nor a delivery is timed for this. The log's follower counts, and notes one entry after each flush of
the ledger. The ledger's rows say when something was handed to the kernel: when they are sealed, some five times a
second, those that cover a noted entry are compared with the time at which it was appended. A row stands for all who
got the same in one go, and has the time of the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.metering import Histogram
from penstock.core.names import is_system
from penstock.values import Entry

WATCHED_MS: Final = 5000
"""How long deliveries of a noted entry are looked for: as long as the longest that the histogram tells apart."""
WATCHED: Final = 32
"""Entries that are noted at once; a flush each 200 ms makes 25 of them."""


class SealedRow(Protocol):
    """What the ledger knows of entries that went to several recipients."""

    ms: int
    state: str
    stream: str
    first: int
    last: int

    @property
    def who(self) -> Sized: ...


class Throughput:
    """Counts entries and deliveries, and times a sample of the latter."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wanted = True  # the next entry is to be noted
        self._watched: dict[str, list[Entry]] = {}  # noted entries by stream
        self.appended = 0
        self.delivered = 0
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
            if row.state == "sent":
                self.delivered += len(row.who)
                if row.stream in self._watched:
                    self._time(row)
        self._forget(self._clock.now_ms() - WATCHED_MS)

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
