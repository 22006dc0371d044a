"""The lake's tables: what is committed is read by others, and what is committed often stays small."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import polars
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import StaticTable

from penstock.iceberg import schemas, tables
from penstock.iceberg.files import WrittenFile, arrow_schema, write_file
from penstock.iceberg.snapshots import GRACE_MS, SNAPSHOTS
from penstock.iceberg.store import FileStore, open_store
from penstock.iceberg.tables import Prepared, Table
from penstock.wire import table_columns
from penstock.wire.lake_files import LETTERS, RECORDS, LakeFile, parse_location
from penstock.wire.table_columns import TABLES, TEXT

DAY = "2030-01-01"
DAY_MS = 1_893_456_000_000


@pytest.fixture(autouse=True)
def planning_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars would rather have a package of its own for it, and warns."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return open_store(tmp_path / "lake")


def rows_of(table: str, numbers: Iterable[int]) -> pa.Table:
    """Rows that differ in their first number and hold something else that is plain."""
    ids = list(numbers)
    plain = {"int64": ids, "int32": [1] * len(ids), "utf8": [f"t{id}" for id in ids]}
    plain |= {"timestamp[us, UTC]": [DAY_MS * 1000 + id for id in ids], "binary": [b"body-%d" % id for id in ids]}
    return pa.table([pa.array(plain[one.type]) for one in TABLES[table]], [one.name for one in TABLES[table]]).cast(
        arrow_schema(table)
    )


def written(store: FileStore, table: str, lo: int, hi: int) -> WrittenFile:
    made = write_file(store, LakeFile(lo, hi, DAY, table), [rows_of(table, range(lo + 1, hi + 1))])
    assert made is not None
    return made


def ids_of(prepared: Prepared) -> list[int]:
    """As pyiceberg reads them by the metadata alone."""
    return sorted(StaticTable.from_metadata(prepared.location).scan().to_arrow()["id"].to_pylist())


def stored(store: FileStore) -> set[str]:
    return {store.location(one.path) for one in store.list("")}


def test_field_ids_never_move() -> None:
    """Files that are there already have these ids: a column keeps its own for ever, new ones come at the end."""
    begins = {"events": "id stream index chunk", "ledger": "entry node epoch sequence", "activity": "door recipient"}
    for table, names in begins.items():
        assert [schemas.schema_of(TABLES[table]).find_field(name).field_id for name in names.split()] == list(
            range(1, len(names.split()) + 1)
        )
    for table in TABLES:
        ids = [int(field.metadata[b"PARQUET:field_id"]) for field in arrow_schema(table)]
        assert ids == [field.field_id for field in schemas.schema_of(TABLES[table]).fields]
    assert {one for tables in RECORDS.values() for one in tables} == TABLES.keys() == LETTERS.keys()


@pytest.mark.parametrize("table", TABLES)
def test_others_read_every_table(store: FileStore, table: str) -> None:
    one, two = (written(store, table, lo, lo + 3) for lo in (0, 3))
    first = Table.create(store, table).append([one], now_ms=DAY_MS)

    second = Table.open(store, first.location).append([two], now_ms=DAY_MS + 1)

    expected = rows_of(table, range(1, 7)).to_pylist()
    read = StaticTable.from_metadata(second.location).scan().to_arrow().select(arrow_schema(table).names)
    assert sorted(read.to_pylist(), key=str) == sorted(expected, key=str)
    frame = polars.scan_iceberg(second.location).collect().to_arrow().select(arrow_schema(table).names)
    assert sorted(frame.to_pylist(), key=str) == sorted(expected, key=str)
    assert all(parse_location(file.location) for file in second.table.files())
    assert [file.rows for file in second.table.files()] == [3, 3]


def test_the_name_of_a_file_says_which_ids_it_covers_and_is_never_used_twice(store: FileStore) -> None:
    one, two = (written(store, "events", 10, 13) for _ in range(2))
    files = [parse_location(made.location) for made in (one, two)]

    assert all(file is not None and (file.lo, file.hi, file.day) == (10, 13, DAY) for file in files)
    assert one.location != two.location
    assert parse_location(store.location("events/data/day=2026-11-15/l-1-2-ab.parquet")) is None, "another's letter"


def test_bounds_tell_which_rows_are_in_a_file_and_nothing_of_bodies(store: FileStore) -> None:
    made = Table.create(store, "events").append([written(store, "events", 4, 9)], now_ms=DAY_MS)

    [file] = Table.open(store, made.location).files()

    assert (file.bounds("id"), file.bounds("stream")) == ((5, 9), ("t5", "t9"))
    assert file.bounds("body") == file.bounds("attributes") == (None, None)
    assert not any(b"body-5" in store.read(one.path) for one in store.list("events/metadata"))


def test_files_that_were_replaced_stay_while_a_scan_may_need_them(store: FileStore) -> None:
    table, small = Table.create(store, "events"), [written(store, "events", lo, lo + 1) for lo in range(3)]
    for one in small:
        table = table.append([one], now_ms=DAY_MS).table
    large = written(store, "events", 0, 3)

    merged = table.replace([large], [one.location for one in small], now_ms=DAY_MS)
    assert ids_of(merged) == [1, 2, 3]
    assert set(merged.gone) & {one.location for one in small} == set()
    table, gone = merged.table, list(merged.gone)
    for number in range(2 * SNAPSHOTS):
        prepared = table.append([written(store, "events", 3 + number, 4 + number)], now_ms=DAY_MS + GRACE_MS - 1)
        table, gone = prepared.table, [*gone, *prepared.gone]
    assert set(gone) & {one.location for one in small} == set(), "somebody may read them still"
    last = table.append([written(store, "events", 90, 91)], now_ms=DAY_MS + GRACE_MS)
    gone += last.gone

    assert {one.location for one in small} <= set(gone)
    assert set(gone) | last.table.named() == stored(store), "every file is named, or said to be gone"
    assert set(gone) & last.table.named() == set()
    assert len(last.table.metadata.snapshots) == SNAPSHOTS


def test_what_is_to_be_forgotten_is_named_by_nothing_any_more(store: FileStore) -> None:
    table = Table.create(store, "events")
    made = [written(store, "events", lo, lo + 1) for lo in range(40)]
    for one in made:
        step = table.append([one], now_ms=DAY_MS)
        store.delete(map(store.relative, step.gone))
        table = step.table

    prepared = table.replace([written(store, "events", 7, 8)], [made[7].location], now_ms=DAY_MS, forget=True)
    store.delete(map(store.relative, prepared.gone))

    assert made[7].location in prepared.gone
    assert len(ids_of(prepared)) == 40
    assert Table.open(store, prepared.location).named() == stored(store)


def _nowhere(needed: Mapping[str, ManifestFile], mine: Mapping[str, ManifestFile]) -> list[ManifestFile]:
    return []


@pytest.mark.parametrize("elsewhere", [None, _nowhere], ids=["honest", "sabotage: nobody looks elsewhere"])
def test_what_goes_is_what_no_kept_snapshot_names(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., list[ManifestFile]] | None
) -> None:
    """A long history by chance: files come, are replaced and merged, manifests too; snapshots expire out of order."""
    monkeypatch.setattr(tables, "MERGE", 3)
    monkeypatch.setattr(tables, "MOST_MANIFESTS", 8)
    if elsewhere:
        monkeypatch.setattr(tables, "_elsewhere", elsewhere)
    chance, table, now_ms = random.Random(3), Table.create(store, "events"), DAY_MS
    data, there, lost = written(store, "events", 0, 1), set[str](), set[str]()
    for number in range(120):
        one, now_ms = _twin(store, data, number), now_ms + chance.choice((1_000, 5_000, GRACE_MS // 8))
        removed = [file.location for file in table.files() if chance.random() < 0.3] if chance.random() < 0.3 else []
        prepared = table.replace([one], removed, now_ms=now_ms) if removed else table.append([one], now_ms=now_ms)
        there = (there | {one.location, *prepared.made}) - set(prepared.gone)
        table, named = prepared.table, prepared.table.named()
        lost |= named - there
        assert there == named or elsewhere, "nothing is left behind"

    assert bool(lost) is bool(elsewhere), "a kept snapshot names what has gone"


def _everywhere(needed: Mapping[str, ManifestFile], mine: Mapping[str, ManifestFile]) -> list[ManifestFile]:
    return list(needed.values())


@pytest.mark.parametrize("elsewhere", [None, _everywhere], ids=["honest", "sabotage: it looks everywhere"])
def test_what_a_commit_looks_at_does_not_grow_with_the_table(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., list[ManifestFile]] | None
) -> None:
    monkeypatch.setattr(tables, "MERGE", 4)
    monkeypatch.setattr(tables, "MERGE_ENTRIES", 40)
    if elsewhere:
        monkeypatch.setattr(tables, "_elsewhere", elsewhere)
    usual, looked, looks = Table._entries_of, list[int](), list[int]()

    def entries_of(self: Table, manifest: ManifestFile) -> list[ManifestEntry]:
        found = usual(self, manifest)
        looked.append(len(found))
        return found

    monkeypatch.setattr(Table, "_entries_of", entries_of)
    table, data = Table.create(store, "events"), written(store, "events", 0, 1)
    for number in range(160):
        table = table.append([_twin(store, data, number)], now_ms=DAY_MS + GRACE_MS * number).table
        looks.append(sum(looked))
        looked.clear()

    early, late = max(looks[:80]), max(looks[80:])
    assert (0 < late <= early + SNAPSHOTS) is not bool(elsewhere), (early, late)


def test_a_file_that_is_not_in_the_table_is_not_replaced(store: FileStore) -> None:
    with pytest.raises(ValueError, match="not in the table"):
        Table.create(store, "events").replace([], [store.location("events/data/none")], now_ms=DAY_MS)


def test_a_column_that_is_declared_later_is_null_in_older_files(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Table.create(store, "unreadable").append([written(store, "unreadable", 0, 2)], now_ms=DAY_MS)
    region = table_columns._column("region", TEXT, "for this test")
    monkeypatch.setitem(TABLES, "unreadable", (*TABLES["unreadable"], region))

    second = Table.open(store, first.location).append([written(store, "unreadable", 2, 4)], now_ms=DAY_MS + 1)

    read = StaticTable.from_metadata(second.location).scan().to_arrow().sort_by("entry")
    assert read["region"].to_pylist() == [None, None, "t3", "t4"]
    assert polars.scan_iceberg(second.location).sort("entry").collect()["region"].to_list() == [None, None, "t3", "t4"]


SOME = 4  # files and manifests more or less: where the sixteens of a level stand when they are counted
CYCLE = 100  # commits, the last of which puts the small files together


class Life:
    """A table as `up` treats it for hours: a file every five seconds, the small ones put together now and then."""

    def __init__(self, store: FileStore, rewrites: bool) -> None:
        self.store, self.table, self._rewrites = store, Table.create(store, "events"), rewrites
        self._made, self._fresh, self._number = written(store, "events", 0, 1), list[str](), 0

    def commit(self) -> float:
        """One more. Returns the CPU it has taken, in seconds."""
        self._number += 1
        one, now_ms = _twin(self.store, self._made, self._number), DAY_MS + 5_000 * self._number
        began = time.process_time()
        if self._number % CYCLE == 0:
            prepared, self._fresh = self.table.replace([one], self._fresh, now_ms=now_ms), []
        elif self._rewrites and self._fresh:
            prepared = self.table.replace([one], [self._fresh.pop()], now_ms=now_ms)
        else:
            prepared = self.table.append([one], now_ms=now_ms)
        spent = time.process_time() - began
        self._fresh.append(one.location)
        self.table = prepared.table
        self.store.delete(map(self.store.relative, prepared.gone))
        return spent


@pytest.mark.parametrize("rewrites", [False, True], ids=["appends", "overwrites"])
@pytest.mark.parametrize("commits", [300, pytest.param(5_000, marks=[pytest.mark.long, pytest.mark.limit(900)])])
def test_many_commits_leave_no_more_behind_than_some(store: FileStore, rewrites: bool, commits: int) -> None:
    life, counts = Life(store, rewrites), []
    for number in range(1, commits + 1):
        life.commit()
        if number % 20 == 0:
            listed = len(list(store.list("events/metadata")))
            counts.append((listed, len(life.table.metadata.snapshots), len(life.table.manifests)))

    many = 2 * len(counts) // 3
    early, late = ([max(one) for one in zip(*part, strict=True)] for part in (counts[:many], counts[many:]))
    assert all(after <= before + SOME for before, after in zip(early, late, strict=True)), (early, late)
    assert len(life.table.files()) < 2 * CYCLE


@pytest.mark.long
@pytest.mark.limit(1800)
@pytest.mark.parametrize("rewrites", [False, True], ids=["appends", "overwrites"])
@pytest.mark.parametrize(
    ("commits", "forever"), [(5_000, False), (900, True)], ids=["honest", "sabotage: no snapshot ever goes"]
)
def test_after_many_commits_one_takes_no_more_cpu_than_after_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: bool, commits: int, forever: bool
) -> None:
    """An old table and a young one take turns, so that a machine that becomes busy is so for both."""
    if forever:
        monkeypatch.setattr(tables, "kept_snapshots", list)
    old, young = (Life(open_store(tmp_path / name), rewrites) for name in ("old", "young"))
    for life, before in ((old, commits), (young, 3 * CYCLE)):
        for _ in range(before):
            life.commit()

    spent = [(old.commit(), young.commit()) for _ in range(4 * CYCLE)]

    slower = sum(one for one, _ in spent) / sum(one for _, one in spent)
    assert (slower < 1.2) is not forever, slower


def _twin(store: FileStore, made: WrittenFile, number: int) -> WrittenFile:
    """The same file under another name: it is the commits that are counted."""
    location = made.location.replace(".parquet", f"{number}.parquet")
    store.write(store.relative(location), store.read(store.relative(made.location)))
    return WrittenFile(location, made.size, made.footer, made.rows)


def test_a_commit_that_nobody_points_at_changes_nothing(store: FileStore) -> None:
    first = Table.create(store, "events").append([written(store, "events", 0, 1)], now_ms=DAY_MS)
    lost = first.table.append([written(store, "events", 1, 2)], now_ms=DAY_MS)

    won = Table.open(store, first.location).append([written(store, "events", 1, 3)], now_ms=DAY_MS)
    store.delete(map(store.relative, lost.made))

    assert ids_of(won) == [1, 2, 3]
    assert tables.Table.open(store, won.location).named().isdisjoint(lost.made)
