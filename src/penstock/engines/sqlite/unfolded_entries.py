"""Where the entries are that are not folded yet, stream by stream, in memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

import msgspec

_WIDTH = 4  # numbers of a spot

Columns = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""Stream numbers, ids, idxs, chunks and offsets of entries."""


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry's coordinates. Along a stream none of them ever falls."""

    id: int
    idx: int
    chunk: int
    offset: int


class Spots(Sequence[Spot]):
    """Spots in order of id, as plain numbers: 32 bytes each, and all of them are forgotten at once."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: array[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    @overload
    def __getitem__(self, place: int) -> Spot: ...
    @overload
    def __getitem__(self, place: slice) -> list[Spot]: ...
    def __getitem__(self, place: int | slice) -> Spot | list[Spot]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return Spot(*self._numbers[_WIDTH * place : _WIDTH * place + _WIDTH])


class UnfoldedSpots:
    """Spots of unfolded entries by stream number, in order of id.

    The writer thread adds what it has committed and drops what it has folded; both are one
    operation of an array under the interpreter lock. A reader first takes a copy here, then asks the
    file: what is dropped in between has been folded before, so it is found there.
    """

    def __init__(self) -> None:
        self._spots: dict[int, array[int]] = {}
        self.count = 0

    def add(self, columns: Columns) -> None:
        """Add spots in order of id."""
        streams, *spots = columns
        if not streams:
            return
        if streams.count(streams[0]) == len(streams):  # one batch, or a busy stream: all at once
            numbers = [0] * (_WIDTH * len(streams))
            for place, column in enumerate(spots):
                numbers[place::_WIDTH] = column
            self._of(streams[0]).extend(numbers)
        else:
            for stream, *spot in zip(streams, *spots, strict=True):
                self._of(stream).extend(spot)
        self.count += len(streams)

    def _of(self, stream: int) -> array[int]:
        numbers = self._spots.get(stream)
        if numbers is None:
            numbers = self._spots[stream] = array("q")
        return numbers

    def of(self, stream: int, upto: int) -> Spots:
        """A copy of one stream's spots with ids up to *upto*."""
        numbers = self._spots.get(stream)
        copy = array("q") if numbers is None else numbers[:]
        del copy[_WIDTH * bisect_right(Spots(copy), upto, key=_id) :]
        return Spots(copy)

    def last_ids(self, most: int) -> list[int] | None:
        """The last id of each stream; None if there are more streams than *most*."""
        if len(self._spots) > most:
            return None
        return [numbers[-_WIDTH] for numbers in self._spots.values()]

    def drop(self, upto: int) -> None:
        """Forget what has been folded."""
        for stream, numbers in list(self._spots.items()):
            gone = bisect_right(Spots(numbers), upto, key=_id)
            self.count -= gone
            if _WIDTH * gone == len(numbers):
                del self._spots[stream]
            else:
                del numbers[: _WIDTH * gone]


def _id(spot: Spot) -> int:
    return spot.id
