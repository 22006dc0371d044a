"""The lake's tables, and names of data files: `<table>/data/day=2026-11-15/e-<lo>-<hi>-<unique>.parquet`.

A file holds the rows made from the log's ids in (lo, hi]; some of these ids may have no row. So its name alone says
whether it can have a wanted id. `<unique>` prevents that a name is ever used twice. It begins with `old` in files from
before Iceberg: these have no field ids, and are read by column names. Only the table's metadata says which files belong
to it. Days are UTC.

This module knows names, nothing else: the server, the pipeline and Spark's workers all use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

LETTERS: Final = {
    "events": "e",
    "ledger": "l",
    "deliveries": "d",
    "positions": "p",
    "rollup_hourly": "r",
    "activity": "a",
    "unreadable": "u",
}
"""The tables, each with the letter that its files begin with."""

RECORDS: Final = {
    "events": ("events",),
    "ledger": ("ledger", "deliveries", "positions", "unreadable"),
    "rollup": ("rollup_hourly", "activity"),
}
"""The server's records `lake/<name>`, and the tables whose pointers and watermark each holds."""

STORE_KEYS: Final = ("AWS_", "GOOGLE_", "AZURE_")
"""How variables of the environment begin by which pyarrow opens object stores."""

ADOPTED: Final = "old"
"""How the unique part of the name of a file begins that has no field ids. Those of all others are hexadecimal."""

TYPED: Final = "typed/"
"""How typed tables are called here, and where they lie: `typed/orders-1f2e3d4c`. Their files begin with `t`."""

_LOCATION = re.compile(
    r"(?:.*/)?([a-z][a-z0-9_-]*)/data/day=([0-9]{4}-[0-9]{2}-[0-9]{2})/"
    r"([a-z])-([0-9]{1,19})-([0-9]{1,19})-([0-9a-z]{1,64})\.parquet",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, order=True)
class LakeFile:
    """One file of a table, as its name tells it. Sorts by range."""

    lo: int
    hi: int
    day: str
    table: str
    unique: str = ""  # what tells it from all other files that were ever written; empty before it is written

    @property
    def name(self) -> str:
        """Its name within the day's folder. Ids are padded, so that names sort like ids."""
        return f"{LETTERS.get(self.table, 't')}-{self.lo:012d}-{self.hi:012d}-{self.unique}.parquet"

    @property
    def path(self) -> str:
        """Its path within the lake."""
        return f"{self.table}/data/day={self.day}/{self.name}"

    @property
    def has_field_ids(self) -> bool:
        """Whether its columns are told apart by field ids, and not by their names alone."""
        return not self.unique.startswith(ADOPTED)

    def overlaps(self, after: int, upto: int) -> bool:
        """Whether it may hold something of the ids in (after, upto]."""
        return self.lo < upto and self.hi > after


def parse_location(location: str) -> LakeFile | None:
    """The data file at *location*, a whole address or a path within the lake; None for one that is none of ours."""
    found = _LOCATION.fullmatch(location)
    if not found or found[3] != LETTERS.get(found[1], "t"):
        return None
    table = found[1] if found[1] in LETTERS else TYPED + found[1]
    return LakeFile(int(found[4]), int(found[5]), found[2], table, found[6])


def tables_of(record: str) -> tuple[str, ...]:
    """The tables of a record. A typed table has one of its own."""
    return RECORDS.get(record) or (record,)


def shown_name(table: str) -> str:
    """What readers call a table."""
    return table.removeprefix(TYPED).rpartition("-")[0] if table.startswith(TYPED) else table


def is_own_epoch(log: str, restored: bool, other: str) -> bool:
    """Whether what carries the epoch *other* (empty: none) speaks of the ids of a log in the epoch *log*.

    A log that was never restored takes what has no epoch for its own: it was written before there were any.
    """
    return other == log or (not other and not restored)


def first_hole(files: Sequence[LakeFile], after: int, upto: int) -> tuple[int, int] | None:
    """The first ids in (after, upto] that no file has: (lo, hi], or None if all of them are covered."""
    position = after
    for file in sorted(files):
        if file.lo > position or position >= upto:
            break
        position = max(position, file.hi)
    if position >= upto:
        return None
    following = min((file.lo for file in files if file.lo > position), default=upto)
    return position, min(following, upto)


def overlapping(files: Iterable[T], named: Callable[[T], LakeFile]) -> Iterator[list[T]]:
    """*files*, which are in order of their ranges, by groups: those that have ids of each other, or one alone."""
    group: list[T] = []
    end = 0
    for one in files:
        if group and named(one).lo >= end:
            yield group
            group = []
        end = max(end, named(one).hi) if group else named(one).hi
        group.append(one)
    if group:
        yield group
