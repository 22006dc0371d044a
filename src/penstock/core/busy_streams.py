"""Which streams are busy: entries a second by stream, lately.

A follower of the log counts entries by stream. Once a second the counts are folded into rates that fade, so that what
was published half a minute ago counts half as much as what is published now. Memory is bounded twice: between two
folds no more than `COUNTED` names are counted, and after one the `KEPT` busiest are kept. The streams left out are not
among the busiest.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Final

from penstock.core.names import is_system
from penstock.values import Entry

HALF_LIFE_SECONDS: Final = 30.0
COUNTED: Final = 16_384
"""Names that are counted between two folds, a second apart; entries of further ones count in the sum alone."""
KEPT: Final = 2_048
"""Names with a rate: some 300 KB."""
FADED: Final = 0.001
"""A rate below this, an entry in a quarter of an hour, is none any more."""


class StreamTraffic:
    """Counts what is published, in sum and by stream. System streams are left out, up to `COUNTED` names."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._others = 0  # entries of names for which there was no room
        self.rates: dict[str, float] = {}  # entries a second of the busiest streams
        self.published = 0

    def follow(self, entries: Sequence[Entry]) -> None:
        """Hear what was appended."""
        counts = self._counts
        for entry in entries:
            if entry.index is not None:
                stream = entry.stream
                if stream in counts:
                    counts[stream] += 1
                elif len(counts) < COUNTED:
                    counts[stream] = 1
                else:
                    self._others += 1

    def fold(self, seconds: float) -> None:
        """Make rates of what was counted in the last *seconds*."""
        counts, self._counts = self._counts, {}
        others, self._others = self._others, 0
        fading: float = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        rates = {name: faded for name, rate in self.rates.items() if (faded := rate * fading) > FADED}
        for name, count in counts.items():
            if not is_system(name):
                self.published += count
                rates[name] = rates.get(name, 0.0) + count * (1 - fading) / seconds
        self.published += others
        if len(rates) > KEPT:
            rates = dict(nlargest(KEPT, rates.items(), key=_rate))
        self.rates = rates


def _rate(item: tuple[str, float]) -> float:
    return item[1]
