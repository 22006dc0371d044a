"""The lake for the pipeline: a store, and tables in the state that the server's records point at.

    events         what was published, every stream, `/_…` too
    ledger         what happened to it: the decoded batches of `/_ledger`
    deliveries     the ledger folded: what became of it, for whom
    positions      how far recipients say that they have come
    rollup_hourly  sums per hour
    activity       when each recipient was last heard of
    unreadable     entries that cannot be read, or do not fit a typed table, and why
    typed/…        columns of JSON bodies, as somebody has declared them

`wire/table_columns.py` has their columns, `iceberg/schemas.py` their partitions, `wire/lake_files.py` the names of
files, `commit.py` how they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import OperatorError
from penstock.iceberg.files import PlannedFile
from penstock.iceberg.store import FileStore, open_store
from penstock.wire.lake_files import RECORDS, first_hole
from penstock.wire.table_columns import TABLES, Column, ddl
from penstock.wire.typed_tables import OWN, TypedTable

if TYPE_CHECKING:
    from penstock.iceberg.tables import Table

SCHEMAS: Final = {name: ddl(columns) for name, columns in TABLES.items()}
"""As Spark wants them."""

EVENTS, LEDGER, ACTIVITY = SCHEMAS["events"], SCHEMAS["ledger"], SCHEMAS["activity"]

RECORD_OF: Final = {table: name for name, tables in RECORDS.items() for table in tables}
"""The record that points at a table; that of a typed table is called like it."""


class LakeHole(OperatorError):
    """Files of the lake are gone. Nothing was done: no file is not the same as no rows."""

    code = "lake_hole"
    remedy = "Put the file back, from a backup of the lake, or let './penstock pipeline repair' make it again."


class Lake:
    """A lake's files, and the tables in them."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self.epoch = ""  # of the log whose entries it holds; set by `lake_identity.bind`
        self._opened: dict[str, Table] = {}

    @property
    def place(self) -> str:
        """Where it is, as people say it: a path, or a URL."""
        return self.store.root if self.store.is_local else self.store.url

    def table(self, name: str, record: Mapping[str, Any]) -> Table:
        """The state of a table that a record points at; an empty one if it points at none."""
        location, columns = record.get("tables", {}).get(name, ""), columns_in(name, record)
        known = self._opened.get(name)
        if known is None or known.location != location or not (name in TABLES or known.has(columns)):
            known = self._opened[name] = self._open(name, location, columns)
        return known

    def committed(self, name: str, table: Table) -> None:
        """Remember a state that was just committed, so that it is not read again."""
        self._opened[name] = table

    def files(self, name: str, record: Mapping[str, Any]) -> list[PlannedFile]:
        """The files of a table, in order of the ids that they cover."""
        return sorted(self.table(name, record).files(), key=lambda one: one.file)

    def check(self, files: Iterable[PlannedFile]) -> None:
        """`LakeHole` if one of *files* is not there."""
        for one in self.store.missing([self.store.relative(one.location) for one in files]):
            raise LakeHole(f"{self.store.location(one)} is gone")

    def _open(self, name: str, location: str, columns: Sequence[Column]) -> Table:
        from penstock.iceberg.tables import Table  # not above: Spark's workers have no pyiceberg

        if not location:
            return Table.create(self.store, name, columns)
        try:
            return Table.open(self.store, location, columns)
        except FileNotFoundError:
            raise LakeHole(f"{location}, the present state of {name}, is gone") from None


def columns_in(table: str, record: Mapping[str, Any]) -> Sequence[Column]:
    """The columns of a table; of a typed one as its record has them."""
    known = record.get("memory", {}).get("table")  # not there before the first turn of a typed table
    return TABLES.get(table) or (TypedTable.read(known).all_columns if known else OWN)


def record_of(table: str) -> str:
    """The record that points at a table."""
    return RECORD_OF.get(table, table)


def open_lake(location: str | Path) -> Lake:
    """The lake at *location*: a folder, or what else pyarrow opens."""
    return Lake(open_store(location))


def covering(name: str, files: Iterable[PlannedFile], after: int, upto: int) -> list[PlannedFile]:
    """Those of *files* that have the ids in (after, upto], in order; `LakeHole` if some of those are in none."""
    found = [one for one in files if one.file.overlaps(after, upto)]
    if after < upto and (hole := first_hole([one.file for one in found], after, upto)):
        raise LakeHole(f"no file of {name} has the ids {hole[0] + 1:,} to {hole[1]:,}")
    return found


def days_between(files: Iterable[PlannedFile], after: int, upto: int) -> list[tuple[int, int, str]]:
    """The ids in (after, upto] cut by days, as the names of *files* tell them: (lo, hi, day), in order, no gaps."""
    cuts: list[tuple[int, int, str]] = []
    for file in sorted(one.file for one in files if one.file.overlaps(after, upto)):
        lo, hi = max(file.lo, after, cuts[-1][1] if cuts else after), min(file.hi, upto)
        if lo >= hi:  # another file has these ids as well
            continue
        if cuts and cuts[-1][2] == file.day and cuts[-1][1] == lo:
            cuts[-1] = (cuts[-1][0], hi, file.day)
        else:
            cuts.append((lo, hi, file.day))
    return cuts
