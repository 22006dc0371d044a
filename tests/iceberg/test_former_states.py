"""States of a table that readers may have loaded stay whole for ten minutes, however many commits come after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import MetadataLogEntry

from penstock.iceberg import tables
from penstock.iceberg.files import WrittenFile
from penstock.iceberg.snapshots import GRACE_MS, SNAPSHOTS, STATES, kept_log
from penstock.iceberg.store import FileStore, open_store
from penstock.iceberg.tables import Table
from tests.iceberg.test_tables import DAY_MS, stored, written

TURN_MS = 4_000


class Turns:
    """A table as `up` commits to it: one file in four seconds of a given clock, and what is gone is deleted."""

    def __init__(self, store: FileStore) -> None:
        self.store, self.table, self.now_ms = store, Table.create(store, "events"), DAY_MS
        self.made = 0

    def append(self, turns: int = 1, after_ms: int = TURN_MS, *, reopened: bool = False) -> None:
        for _ in range(turns):
            self.now_ms += after_ms
            if reopened:
                self.table = Table.open(self.store, self.table.location)  # as a process that has just begun
            self._land(self.table.append([self._written()], now_ms=self.now_ms))

    def replace(self, *, forget: bool = False) -> None:
        """Put one file in the place of all that the table has."""
        self.now_ms += TURN_MS
        removed = [one.location for one in self.table.files()]
        self._land(self.table.replace([self._written()], removed, now_ms=self.now_ms, forget=forget))

    def _written(self) -> WrittenFile:
        self.made += 1
        return written(self.store, "events", self.made - 1, self.made)

    def _land(self, prepared: tables.Prepared) -> None:
        self.store.delete(map(self.store.relative, prepared.gone))
        self.table = prepared.table

    def metadata_files(self) -> int:
        return len(list(self.store.list("events/metadata")))


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    return Turns(open_store(tmp_path / "lake"))


def ids_in(loaded: StaticTable) -> list[int]:
    return sorted(loaded.scan().to_arrow()["id"].to_pylist())


def by_number(log: list[object], now_ms: int) -> list[object]:
    """The sabotage: the newest ten stay, whatever their age."""
    return log[-SNAPSHOTS:]


@pytest.mark.parametrize(
    ("reopened", "sabotaged"),
    [(False, False), (True, False), (False, True)],
    ids=["one process", "a process for each commit", "sabotage: only the newest ten stay"],
)
def test_a_scan_that_has_begun_ends_whatever_is_committed_within_ten_minutes(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, reopened: bool, sabotaged: bool
) -> None:
    turns.append(20)  # so that sixteen manifests were merged
    loaded = StaticTable.from_metadata(turns.table.location)
    if sabotaged:
        monkeypatch.setattr(tables, "kept_log", by_number)

    turns.append(12, reopened=reopened)
    turns.replace()
    turns.append(SNAPSHOTS + 1, after_ms=1, reopened=reopened)

    if sabotaged:
        with pytest.raises(FileNotFoundError):
            ids_in(loaded)
    else:
        assert ids_in(loaded) == list(range(1, 21))


@pytest.mark.parametrize("reopened", [False, True], ids=["one process", "a process for each commit"])
def test_after_ten_minutes_all_of_it_is_gone(turns: Turns, reopened: bool) -> None:
    turns.append(20)
    held = {one for one in stored(turns.store) if "/metadata/" in one}
    turns.append(SNAPSHOTS + 1, reopened=reopened)
    assert held <= stored(turns.store)

    turns.append(1, after_ms=GRACE_MS, reopened=reopened)

    # Beside the ten states that are always kept nothing is left, and nothing that is left is named by nobody.
    assert held & stored(turns.store) <= turns.table.named()
    assert stored(turns.store) == Table.open(turns.store, turns.table.location).named()
    assert sum(one.endswith(".json") for one in stored(turns.store)) == SNAPSHOTS + 1


def test_an_idle_hour_before_makes_no_difference(turns: Turns) -> None:
    """What counts is when a state was followed by another, not when its files were written."""
    turns.append(20)
    loaded = StaticTable.from_metadata(turns.table.location)
    turns.append(1, after_ms=3_600_000)
    turns.append(2 * SNAPSHOTS)

    assert ids_in(loaded) == list(range(1, 21))


def test_the_number_of_files_stays_flat(turns: Turns) -> None:
    """A state has two files and at most two manifests of its own; here ten minutes have twenty states."""
    counts = []
    for number in range(9):
        turns.append(8, after_ms=GRACE_MS // 20)
        if number % 3 == 2:
            turns.replace()
        counts.append(turns.metadata_files())

    assert max(counts[6:]) <= max(counts[3:6]) + 4, counts
    assert max(counts) < 4 * 25, counts


def test_what_is_to_be_forgotten_goes_at_once(turns: Turns) -> None:
    turns.append(30)
    turns.table = Table.open(turns.store, turns.table.location)

    turns.replace(forget=True)

    assert stored(turns.store) == turns.table.named()
    assert turns.metadata_files() == 3, "metadata.json, its list, and one manifest"


def test_a_lake_of_an_earlier_build_goes_on(turns: Turns) -> None:
    """There the lists of the states that are older than the newest ten are gone, whatever the metadata.json tell."""
    turns.append(20)
    known = Table.open(turns.store, turns.table.location)
    kept = {one.manifest_list for one in known.metadata.snapshots}
    lists = {one for one in stored(turns.store) if "/snap-" in one}
    assert len(lists - kept) == 10
    turns.store.delete(map(turns.store.relative, lists - kept))

    turns.append(1, after_ms=GRACE_MS, reopened=True)
    turns.append(SNAPSHOTS, reopened=True)

    assert ids_in(StaticTable.from_metadata(turns.table.location)) == list(range(1, 32))
    assert turns.table.named() <= stored(turns.store)


def test_a_manifest_that_only_former_states_have_may_be_lost(turns: Turns) -> None:
    """They cannot be read any more; commits and sweeps go on."""
    turns.append(20)
    known = Table.open(turns.store, turns.table.location)
    present = {one.manifest_path for one in known.manifests}
    lost = next(one for one in sorted(known.named()) if "-m1.avro" in one and one not in present)
    turns.store.delete([turns.store.relative(lost)])

    turns.append(1, reopened=True)
    assert Table.open(turns.store, turns.table.location).named() - stored(turns.store) == {lost}
    turns.append(SNAPSHOTS, after_ms=GRACE_MS, reopened=True)

    assert ids_in(StaticTable.from_metadata(turns.table.location)) == list(range(1, 32))
    assert turns.table.named() == stored(turns.store)


def test_a_clock_that_was_set_back_keeps_a_thousand_states_and_no_more() -> None:
    log = [MetadataLogEntry(metadata_file=str(number), timestamp_ms=DAY_MS) for number in range(STATES + 5)]

    kept = kept_log(log, DAY_MS)

    assert [one.metadata_file for one in kept] == [str(number) for number in range(5, STATES + 5)]
