"""Scans by the catalog that have begun before the table changes: they end with the rows that they began with.

An erase takes these away. Then a scan ends with an error, and never with wrong rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from penstock.iceberg import tables
from penstock.iceberg.files import WrittenFile
from penstock.iceberg.snapshots import SNAPSHOTS
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_COMMIT, AFTER_FILES, AFTER_UNLINK, BEFORE_COMMIT, Faults, watermark
from penstock.pipeline.erased_rows import EraseFrom
from penstock.pipeline.jobs import compact, erase
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.api.client import ask, publish
from tests.lake_readers import DuckDb, open_catalog, start_duckdb
from tests.pipeline.by_hand import archive_turn, exported, make_here

COLUMNS = ("id", "kind", "stream", "body")
Rows = list[tuple[Any, ...]]
Scan = Callable[[int, int], Rows]
"""Reads the rows with ids in (lo, hi], of the state that it began with."""

STREAM, EACH = "/scanned", 6
READERS = ("pyiceberg", "polars", "duckdb")


class Scanned:
    """A lake with some files of `events`, and three programs that read it by name."""

    def __init__(self, server: RunningServer, place: str, database: DuckDb, folder: Path) -> None:
        self.server, self.place, self._database, self._folder = server, place, database, folder
        self.client, self.lake = PipelineClient(server.url, server.admin_token), open_lake(place)
        bind(self.client, self.lake)
        database.attach(server.url, server.admin_token)

    def archive(self, turns: int, rows: int = EACH) -> int:
        """Each turn makes a file; returns how far the lake is."""
        for _ in range(turns):
            for number in range(rows):
                publish(self.server, STREAM, b"row %d" % number)
            archive_turn(self.client, self.lake)
        return watermark(self.client, "events")

    def logged(self, upto: int) -> Rows:
        """What the lake is to have."""
        return plain(exported(self.client, 0, upto))

    def begin_all(self) -> dict[str, Scan]:
        """Let each reader begin a scan: the table is loaded, no row is read."""
        return {reader: getattr(self, f"_begin_{reader}")() for reader in READERS}

    def _begin_pyiceberg(self) -> Scan:
        table = open_catalog(self.server.url, self.server.admin_token).load_table("penstock.events")
        return lambda lo, hi: plain(table.scan(row_filter=f"id > {lo} AND id <= {hi}").to_arrow())

    def _begin_polars(self) -> Scan:
        table = open_catalog(self.server.url, self.server.admin_token).load_table("penstock.events")
        options = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
        frame, id = polars.scan_iceberg(table, storage_options=options), polars.col("id")
        return lambda lo, hi: plain(frame.filter((id > lo) & (id <= hi)).collect().to_arrow())

    def _begin_duckdb(self) -> Scan:
        """Within a transaction it stays with the state that it has seen first."""
        self._database.sql("BEGIN")
        self._database.sql("SELECT max(id) FROM lake.penstock.events")
        return self._by_duckdb

    def _by_duckdb(self, lo: int, hi: int) -> Rows:
        query = f"SELECT * FROM lake.penstock.events WHERE id > {lo} AND id <= {hi}"
        return plain(self._database.table(query, self._folder))


def plain(rows: pa.Table) -> Rows:
    """As plain values, in order of their ids."""
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows.select(COLUMNS).to_pylist())


def read_all(begun: dict[str, Scan], lo: int, hi: int) -> dict[str, Rows | str]:
    """What each reader reads, or why it cannot."""
    found: dict[str, Rows | str] = {}
    for reader, scan in begun.items():
        try:
            found[reader] = scan(lo, hi)
        except Exception as error:  # noqa: BLE001 - each of them says it in another way
            found[reader] = f"{type(error).__name__}: {error}"
    return found


@contextmanager
def scanned(place: str, folder: Path) -> Iterator[Scanned]:
    (folder / "lake").mkdir()
    with start_server(folder / "data", lake_url=place) as server, start_duckdb() as database:
        yield Scanned(server, place, database, folder)


# ── appends, a compaction and a sweep ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_scan_that_has_begun_ends_though_all_its_files_were_replaced(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scanned(place, tmp_path) as world:
        newest = world.archive(2)
        begun = world.begin_all()

        # More commits than snapshots are kept; then another process puts all files together, and sweeps.
        last = world.archive(SNAPSHOTS + 2, rows=1)
        compact.run(make_here(world.client, open_lake(place)), {"all": ""})
        assert read_all(begun, 0, last) == dict.fromkeys(READERS, world.logged(newest))

        # The sabotage: a commit that keeps the newest ten states alone. pyiceberg reads the lists for each scan; the
        # others know them by now, and data files are there.
        monkeypatch.setattr(tables, "kept_log", lambda log, now_ms: log[-SNAPSHOTS:])
        world.archive(1)
        lost = [reader for reader, rows in read_all(begun, 0, last).items() if isinstance(rows, str)]
        assert lost == ["pyiceberg"]


# ── an erase ───────────────────────────────────────────────────────────────────────────────────────


class ReadOnAt(Faults):
    """Scans that have read a half of the rows read the other half, at each point that an erase comes to."""

    def __init__(self, world: Scanned, half: int, newest: int) -> None:
        self._begun, self._half, self._newest = world.begin_all(), half, newest
        self._first = read_all(self._begun, 0, half)
        self.read: dict[str, dict[str, Rows | str]] = {}  # by the point, and the reader

    def at(self, point: str) -> None:
        if point not in self.read:  # each is come to again when the turn ends
            second = read_all(self._begun, self._half, self._newest)
            self.read[point] = {reader: joined(self._first[reader], second[reader]) for reader in READERS}


def joined(first: Rows | str, second: Rows | str) -> Rows | str:
    if isinstance(first, str):
        return f"before the erase: {first}"
    return second if isinstance(second, str) else first + second


def erase_beneath_scans(world: Scanned) -> tuple[Rows, dict[str, dict[str, Rows | str]]]:
    """Erase a stream of which both halves of the rows have some; what the rows were, and what was read."""
    half, newest = world.archive(1), world.archive(1)
    old = world.logged(newest)
    assert ask(world.server, "POST", "/v1/log/erase", json.dumps({"stream": STREAM}).encode()).status == 200
    archive_turn(world.client, world.lake)
    scans = ReadOnAt(world, half, newest)
    done = erase.run(make_here(world.client, world.lake, scans), {})
    assert done.data["rows"] == 2 * EACH
    return old, scans.read


def test_a_scan_beneath_which_rows_are_erased_ends_with_the_old_ones_or_with_an_error(
    place: str, tmp_path: Path
) -> None:
    with scanned(place, tmp_path) as world:
        old, read = erase_beneath_scans(world)

    for point in (AFTER_FILES, BEFORE_COMMIT, AFTER_COMMIT):
        assert read[point] == dict.fromkeys(READERS, old), point
    gone = read[AFTER_UNLINK]
    assert isinstance(gone["pyiceberg"], str)
    assert isinstance(gone["polars"], str)
    assert isinstance(gone["duckdb"], str) or gone["duckdb"] == old, "it may have kept what it has read"


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_sabotage_an_erase_that_writes_into_the_old_files_mixes_old_rows_and_new_ones(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_anew = EraseFrom.run

    def in_place(task: EraseFrom) -> tuple[int, WrittenFile | None]:
        rows, written = write_anew(task)
        if written is None:
            return rows, None
        fresh, former = (task.store.relative(one) for one in (written.location, task.file.location))
        task.store.write(former, task.store.read(fresh))
        task.store.delete([fresh])
        return rows, replace(written, location=task.file.location)

    monkeypatch.setattr(EraseFrom, "run", in_place)
    with scanned(place, tmp_path) as world:
        old, read = erase_beneath_scans(world)

    for reader in ("pyiceberg", "polars"):
        rows = read[AFTER_FILES][reader]
        assert [row[0] for row in rows] == [row[0] for row in old]
        assert sum(row[1] == "erased" for row in rows) == EACH
