"""The files of one table of the lake, by the ranges of ids in their names.

    events/data/day=2026-11-15/e-0-1024-7f3a.parquet       the rows with ids in (0, 1024]
    events/data/day=2026-11-16/e-1024-2000-c01d.parquet    … and those that follow

Which files there are is told by the table's metadata, never by a folder. A name says which ids a file covers, also
where it has no row for some of them; the bounds from the manifest say more. So nothing is opened until its rows are
wanted. No name is used twice: what was read of a file under its name stays true.

A file has rows of one day. Two of one day that have the same ids have the same rows; two of different days each have
rows that the other has not, in any order. Compaction once made such files, where two days alternate around midnight. It
puts them apart again (`pipeline/untangling.py`); until then nothing of them is shown, rather than half of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from penstock.wire.lake_files import parse_location

if TYPE_CHECKING:
    from penstock.iceberg.reading import ColumnBounds, ListedFile


class ChunkLine(NamedTuple):
    """Where a line of a stream lies within its chunk."""

    id: int
    offset: int
    size: int


class CoveringFile(NamedTuple):
    """A data file, and the ids in (lo, hi] that it has all rows of."""

    lo: int
    hi: int
    file: ListedFile
    day: str

    @property
    def path(self) -> str:
        """Where it is, below the store's root."""
        return self.file.path

    @property
    def bounds(self) -> ColumnBounds:
        """Between which values its columns lie."""
        return self.file.bounds


class Tangle(CoveringFile):
    """Ids in (lo, hi] that files of different days have; *file* is the first of these. Nothing of them can be read."""

    @property
    def path(self) -> str:
        raise self._refusal()

    @property
    def bounds(self) -> ColumnBounds:
        raise self._refusal()

    def _refusal(self) -> ValueError:
        said = f"files of different days have the ids {self.lo + 1:,} to {self.hi:,}"
        return ValueError(f"{said}; './penstock pipeline compact' puts them apart")


@dataclass(frozen=True)
class TableFiles:
    """All files of a table at one moment. Never changed: replaced."""

    all: tuple[CoveringFile, ...] = ()  # in order of their ranges

    @classmethod
    def of(cls, planned: Iterable[ListedFile]) -> TableFiles:
        """Those that a table's metadata names. `ValueError` for a name that says no range."""
        return cls(tuple(sorted(map(_covering, planned), key=lambda file: (file.lo, -file.hi))))

    @cached_property
    def cover(self) -> list[CoveringFile]:
        """In order, none of which lies within another: no row is then read twice."""
        cover: list[CoveringFile] = []
        for file in self.all:
            last = cover[-1] if cover else None
            if last and file.lo < last.hi and (file.day != last.day or isinstance(last, Tangle)):
                hi = max(last.hi, file.hi)
                while len(cover) > 1 and cover[-2].hi > cover[-1].lo:
                    cover.pop()
                cover[-1] = Tangle(cover[-1].lo, hi, cover[-1].file, cover[-1].day)
            elif not last or file.hi > last.hi:
                cover.append(file)
        return cover

    def holding(self, id: int) -> CoveringFile | None:
        """The file whose range covers *id*."""
        place = bisect_right(self.cover, id - 1, key=lambda file: file.lo) - 1
        return self.cover[place] if place >= 0 and self.cover[place].hi >= id else None

    def next_after(self, id: int) -> CoveringFile | None:
        """The first file whose range begins at *id* or later."""
        place = bisect_right(self.cover, id - 1, key=lambda file: file.lo)
        return self.cover[place] if place < len(self.cover) else None

    def covered_upto(self, after: int) -> int:
        """How far the files reach from *after* on without a hole."""
        while file := self.holding(after + 1):
            after = file.hi
        return after

    def readable_upto(self, after: int, upto: int) -> int:
        """*upto*, or where before it the first ids beyond *after* lie that cannot be read."""
        return min([upto, *(max(after, one.lo) for one in self.cover if isinstance(one, Tangle) and one.hi > after)])


def _covering(file: ListedFile) -> CoveringFile:
    named = parse_location(file.path)
    if named is None:
        raise ValueError(f"{file.path} is no file of the lake: its name says no ids")
    return CoveringFile(named.lo, named.hi, file, named.day)
