"""Scans by the catalog that have begun before the table changes: they end with the rows that they began with.

Only an erase takes these away. Then a scan ends with an error, and never with wrong rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

from penstock.iceberg import tables
from penstock.iceberg.snapshots import SNAPSHOTS
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import compact
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.api.client import publish
from tests.lake_readers import DuckDb, open_catalog, start_duckdb
from tests.pipeline.by_hand import archive_turn, exported, make_here

COLUMNS = ("id", "kind", "stream", "body")
Rows = list[tuple[Any, ...]]
Finish = Callable[[], Rows]

STREAM, EACH = "/scanned", 6
READERS = ("pyiceberg", "polars", "duckdb")


class Scanned:
    """A lake with some files of `events`, and three programs that read it by name."""

    def __init__(self, server: RunningServer, place: str, database: DuckDb, folder: Path) -> None:
        self.server, self.place, self._database, self._folder = server, place, database, folder
        self.client, self.lake = PipelineClient(server.url, server.admin_token), open_lake(place)
        bind(self.client, self.lake)
        database.attach(server.url, server.admin_token)

    def archive(self, turns: int, rows: int = EACH) -> None:
        """Each turn makes a file."""
        for _ in range(turns):
            for number in range(rows):
                publish(self.server, STREAM, b"row %d" % number)
            archive_turn(self.client, self.lake)

    def logged(self) -> Rows:
        """What the lake is to have."""
        return plain(exported(self.client, 0, archive_turn(self.client, self.lake)))

    def begin_all(self) -> dict[str, Finish]:
        """Let each reader begin a scan; what is returned ends it."""
        return {reader: getattr(self, f"_begin_{reader}")() for reader in READERS}

    def _begin_pyiceberg(self) -> Finish:
        """The table is loaded; files are planned and read when the scan is asked for its rows."""
        scan = open_catalog(self.server.url, self.server.admin_token).load_table("penstock.events").scan()
        return lambda: plain(scan.to_arrow())

    def _begin_polars(self) -> Finish:
        table = open_catalog(self.server.url, self.server.admin_token).load_table("penstock.events")
        options = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
        frame = polars.scan_iceberg(table, storage_options=options)
        return lambda: plain(frame.collect().to_arrow())

    def _begin_duckdb(self) -> Finish:
        """Within a transaction it stays with the state that it has seen first."""
        self._database.sql("BEGIN")
        self._database.sql("SELECT max(id) FROM lake.penstock.events")
        return self._end_duckdb

    def _end_duckdb(self) -> Rows:
        try:
            return plain(self._database.table("SELECT * FROM lake.penstock.events", self._folder))
        finally:
            self._database.sql("ROLLBACK")


def plain(rows: pa.Table) -> Rows:
    """As plain values, in order of their ids."""
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows.select(COLUMNS).to_pylist())


def end_all(begun: dict[str, Finish]) -> dict[str, Rows | str]:
    """What each reader has read, or why it could not."""
    found: dict[str, Rows | str] = {}
    for reader, finish in begun.items():
        try:
            found[reader] = finish()
        except Exception as error:  # noqa: BLE001 - each of them says it in another way
            found[reader] = f"{type(error).__name__}: {error}"
    return found


@contextmanager
def scanned(place: str, folder: Path) -> Iterator[Scanned]:
    (folder / "lake").mkdir()
    with start_server(folder / "data", lake_url=place) as server, start_duckdb() as database:
        yield Scanned(server, place, database, folder)


# ── appends, a compaction and a sweep ──────────────────────────────────────────────────────────────


def commits_and_a_sweep(world: Scanned) -> None:
    """More commits than snapshots are kept; then another process puts all files together, and sweeps."""
    world.archive(SNAPSHOTS + 2, rows=1)
    compact.run(make_here(world.client, open_lake(world.place)), {"all": ""})


def test_a_scan_that_has_begun_ends_though_all_its_files_were_replaced(place: str, tmp_path: Path) -> None:
    with scanned(place, tmp_path) as world:
        world.archive(2)
        expected = world.logged()
        begun = world.begin_all()

        commits_and_a_sweep(world)

        assert end_all(begun) == dict.fromkeys(READERS, expected)
        assert len(world.logged()) > len(expected)


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_sabotage_with_the_newest_ten_states_alone_it_does_not(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "kept_log", lambda log, now_ms: log[-SNAPSHOTS:])
    with scanned(place, tmp_path) as world:
        world.archive(2)
        begun = world.begin_all()

        commits_and_a_sweep(world)

        lost = [reader for reader, rows in end_all(begun).items() if isinstance(rows, str)]
        assert lost == ["pyiceberg", "polars"], "DuckDB has read the lists when it begins, and data files are there"
