"""The files of one table of the lake, by the ranges of ids in their names.

    events/day=2026-11-15/e-0-1024.parquet       the rows with ids in (0, 1024]
    events/day=2026-11-16/e-1024-2000.parquet    … and those that follow

A name says all that is needed to find a file, so nothing is opened until its rows are wanted. Folders are
listed again only when they have changed. Compaction puts a new folder in the place of a day: who then misses
a file lists again and finds the same rows under another name.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.wire.lake import LakeFile, parse_folder, parse_name

_UNSETTLED = (0, 0)
_TICK_NS = 1_000_000_000


class ChunkLine(NamedTuple):
    """Where a line of a stream lies within its chunk."""

    id: int
    offset: int
    size: int


class Files:
    """What a table's folder holds. `refresh` looks at the disk; the rest is memory."""

    def __init__(self, lake: Path, table: str) -> None:
        self._lake, self._table = lake, table
        self._days: dict[Path, tuple[tuple[int, int], list[LakeFile]]] = {}
        self._cover: list[LakeFile] = []

    @property
    def cover(self) -> list[LakeFile]:
        """Files in order, none of which lies within another. Never changed: replaced."""
        return self._cover

    def refresh(self) -> None:
        """List the folders that have changed."""
        days = {}
        for day in _folders(self._lake / self._table):
            stamp = _stamp(day)
            known = self._days.get(day)
            days[day] = known if known and known[0] == stamp != _UNSETTLED else (stamp, list(self._list(day)))
        self._days = days
        self._cover = _covering(file for _, files in days.values() for file in files)

    def _list(self, folder: Path) -> Iterator[LakeFile]:
        day = parse_folder(folder.name) or ""
        try:
            for path in folder.iterdir():
                if file := parse_name(self._table, day, path.name):
                    yield file
        except FileNotFoundError:
            return

    def path(self, file: LakeFile) -> Path:
        """Where *file* is."""
        return self._lake / file.path

    def holding(self, id: int) -> LakeFile | None:
        """The file whose range covers *id*."""
        cover = self._cover
        place = bisect_right(cover, id - 1, key=lambda file: file.lo) - 1
        return cover[place] if place >= 0 and cover[place].hi >= id else None

    def next_after(self, id: int) -> LakeFile | None:
        """The first file whose range begins at *id* or later."""
        cover = self._cover
        place = bisect_right(cover, id - 1, key=lambda file: file.lo)
        return cover[place] if place < len(cover) else None

    def overlapping(self, lo: int, hi: int) -> list[LakeFile]:
        """All files that may have rows with ids in (lo, hi], also such as lie within others."""
        everything = (file for _, files in self._days.values() for file in files)
        return sorted(file for file in everything if file.overlaps(lo, hi))

    def covered_upto(self, after: int) -> int:
        """How far the files reach from *after* on without a hole."""
        while file := self.holding(after + 1):
            after = file.hi
        return after


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if parse_folder(path.name))
    except FileNotFoundError:
        return []


def _stamp(folder: Path) -> tuple[int, int]:
    """What changes when a file comes or goes. Not yet to be trusted if that was a moment ago: clocks have ticks."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return _UNSETTLED
    return _UNSETTLED if time.time_ns() - status.st_mtime_ns < _TICK_NS else (status.st_ino, status.st_mtime_ns)


def _covering(files: Iterable[LakeFile]) -> list[LakeFile]:
    """Without those that lie within another: no row is then read twice."""
    cover: list[LakeFile] = []
    for file in sorted(files, key=lambda file: (file.lo, -file.hi)):
        if not cover or file.hi > cover[-1].hi:
            cover.append(file)
    return cover
