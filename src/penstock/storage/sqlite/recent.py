"""Where the entries are that are not folded yet, stream by stream, in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry's coordinates. Along a stream none of them ever falls."""

    id: int
    idx: int
    chunk: int
    offset: int


class Recent:
    """Spots of unfolded entries by stream number, in order of id.

    The writer thread adds what it has committed and drops what it has folded; both are one
    list operation under the interpreter lock. A reader first takes a copy here, then asks the
    file: what is dropped in between has been folded before, so it is found there.
    """

    def __init__(self) -> None:
        self._spots: dict[int, list[Spot]] = {}
        self.count = 0

    def add(self, spots: Iterable[tuple[int, Spot]]) -> None:
        """Add spots, each with its stream's number, in order of id."""
        known = self._spots
        for stream, spot in spots:
            if stream in known:
                known[stream].append(spot)
            else:
                known[stream] = [spot]
            self.count += 1

    def of(self, stream: int, upto: int) -> list[Spot]:
        """A copy of one stream's spots with ids up to *upto*."""
        spots = self._spots.get(stream, [])[:]
        return spots[: bisect_right(spots, upto, key=_id)]

    def drop(self, upto: int) -> None:
        """Forget what has been folded."""
        for stream, spots in list(self._spots.items()):
            gone = bisect_right(spots, upto, key=_id)
            self.count -= gone
            if gone == len(spots):
                del self._spots[stream]
            elif gone:
                self._spots[stream] = spots[gone:]


def _id(spot: Spot) -> int:
    return spot.id
