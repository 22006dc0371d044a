"""Puts files of `events` apart: of two days that have ids of each other → those that have all rows of their ids.

    (0, 30] of day A, (10, 40] of day B    →    (0, 10] A, (10, 20] B, (20, 30] A, (30, 40] B

A file has rows of one day, and its name says of which ids it has all rows: readers find ids by names. Where two days
alternate around midnight a day's files are no neighbours of each other. Compaction once put them together all the
same. What it made is written again here, each piece from the one file that has its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy

from penstock.iceberg.files import PlannedFile, read_batches
from penstock.iceberg.store import FileStore
from penstock.pipeline.commit import TableChange, Turn
from penstock.pipeline.file_lists import FileList
from penstock.pipeline.jobs import Workplace
from penstock.pipeline.writing import CopyRows, rows_between
from penstock.wire.lake_files import LakeFile, overlapping

T = TypeVar("T")
Range = tuple[int, int]


def untangle(place: Workplace, turn: Turn) -> TableChange:
    """Write all tangled files of `events` again, in one commit; returns what has changed."""
    files = sorted(turn.table("events").files(), key=lambda one: one.file)
    tangles = list(_tangled(files, lambda one: one.file))
    removed = [one for tangle in tangles for one in tangle]
    if removed:
        place.lake.check(removed)
    copies = [task for tangle in tangles for task in _copies(place, tangle)]
    change = TableChange("events", place.in_tasks(CopyRows.run, copies), [one.location for one in removed])
    if change:
        turn.replace([change])
    return change


def are_tangled(files: FileList) -> bool:
    """Whether some of these files are to be written again."""
    return next(_tangled(files, lambda one: one), None) is not None


def _tangled(files: Iterable[T], named: Callable[[T], LakeFile]) -> Iterator[list[T]]:
    """Files of different days that have ids of each other."""
    return (group for group in overlapping(files, named) if len({named(one).day for one in group}) > 1)


@dataclass(frozen=True, slots=True)
class _TangledFile:
    """A file, and the ids in (lo, hi] of which its rows count."""

    file: PlannedFile
    lo: int
    hi: int


def _parts(tangle: Sequence[PlannedFile]) -> list[_TangledFile]:
    """The files of a tangle. What two of one day both have counts once: these are the same rows."""
    parts: list[_TangledFile] = []
    reached: dict[str, int] = {}
    for one in tangle:
        lo = max(one.file.lo, reached.get(one.file.day, 0))
        if lo < one.file.hi:
            parts.append(_TangledFile(one, lo, one.file.hi))
            reached[one.file.day] = one.file.hi
    return parts


def _copies(place: Workplace, tangle: Sequence[PlannedFile]) -> Iterator[CopyRows]:
    """What tasks are to copy, so that the names of their files cover the ids of the tangle without a gap."""
    parts, store = _parts(tangle), place.lake.store
    ranges = list(pairwise(sorted({border for one in parts for border in (one.lo, one.hi)})))
    of_parts = [[one for one in ranges if one[0] < part.hi and part.lo < one[1]] for part in parts]
    shared = frozenset(one for one in ranges if sum(one in some for some in of_parts) > 1)
    tasks = [FindIds(store, one.file.location, tuple(some), shared) for one, some in zip(parts, of_parts, strict=True)]
    runs = _runs(place.in_tasks(FindIds.run, tasks))
    ends = [ranges[0][0], *(one.last for one in runs[:-1]), ranges[-1][1]]
    for run, (lo, hi) in zip(runs, pairwise(ends), strict=True):
        part = parts[run.number]
        name = LakeFile(lo, hi, part.file.file.day, "events")
        yield CopyRows(store, part.file.location, max(lo, part.lo), min(hi, part.hi), name, run.rows)


@dataclass(frozen=True, slots=True)
class FindIds:
    """What one task does: find the ids of a file. Where no other file has any, the last ones stand for those before."""

    store: FileStore
    location: str
    ranges: tuple[Range, ...]
    shared: frozenset[Range]  # those of which other files have ids as well

    def run(self) -> tuple[Any, Any]:
        """Ids in order, and for how many rows each stands."""
        found, counts = [numpy.empty(0, numpy.int64)], [numpy.empty(0, numpy.int64)]
        for batch in read_batches(self.store, self.location, ("id",)):
            for one in self.ranges:
                ids = rows_between(batch, *one)["id"].to_numpy()
                alone = one not in self.shared
                found.append(ids[-1:] if alone else ids)
                counts.append(numpy.array([len(ids)] * bool(len(ids))) if alone else numpy.ones(len(ids), numpy.int64))
        return numpy.concatenate(found), numpy.concatenate(counts)


class _Run(NamedTuple):
    """Rows that follow each other, all of one file."""

    number: int  # of the file
    last: int  # id
    rows: int


def _runs(found: Sequence[tuple[Any, Any]]) -> list[_Run]:
    """All rows, in order of their ids."""
    ids = numpy.concatenate([ids for ids, _ in found])
    order = numpy.argsort(ids)
    ids, counts = ids[order], numpy.concatenate([counts for _, counts in found])[order]
    numbers = numpy.concatenate([numpy.full(len(ids), number) for number, (ids, _) in enumerate(found)])[order]
    begins = numpy.flatnonzero(numpy.diff(numbers, prepend=-1))
    lasts, rows = numpy.append(begins[1:], len(ids)) - 1, numpy.add.reduceat(counts, begins)
    return [_Run(*map(int, one)) for one in zip(numbers[begins], ids[lasts], rows, strict=True)]
