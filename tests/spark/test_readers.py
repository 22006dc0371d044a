"""pyiceberg, DuckDB and Polars read the lake while it is written and compacted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import StaticTable

from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import open_store
from penstock.iceberg.tables import Table
from penstock.pipeline.jobs import Workplace, archive, compact
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import TABLES
from tests.spark.filling import publish

ROUNDS, ROWS, READS = 4, 2_000, 3
COLUMNS = ["id", "index", "stream", "body"]


def present(place: Workplace) -> str:
    """The metadata.json of `events` as it is now."""
    return str(place.client.get("lake/events").value["tables"]["events"])


def with_pyiceberg(location: str) -> pa.Table:
    return StaticTable.from_metadata(location).scan(selected_fields=tuple(COLUMNS)).to_arrow()


def with_duckdb(location: str) -> pa.Table:
    """DuckDB by the files that the metadata names."""
    store = open_store(location.partition("/events/")[0])
    paths = [one.location.removeprefix("file://") for one in Table.open(store, location).files()]
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT {', '.join(COLUMNS)} FROM read_parquet({paths})").to_arrow_table()


def with_polars(location: str) -> pa.Table:
    return polars.scan_iceberg(location).select(COLUMNS).collect().to_arrow()


def wrong(table: pa.Table) -> str:
    """What is wrong with what a reader saw; empty if nothing is."""
    if pc.count_distinct(table.column("id")).as_py() != table.num_rows:
        return "a row was there twice"
    mine = table.filter(pc.equal(table.column("stream").cast(pa.string()), "/read"))
    mine = mine.filter(pc.is_valid(mine.column("index")))
    expected = [f"n{number}".encode() for number in mine.column("index").to_pylist()]
    return "" if mine.column("body").cast(pa.binary()).to_pylist() == expected else "a row was wrong"


class Reader(threading.Thread):
    """Reads again and again; remembers what was wrong."""

    def __init__(self, name: str, read: Callable[[str], pa.Table], place: Workplace) -> None:
        super().__init__(name=name, daemon=True)
        self._read, self._place = read, place
        self.ending = threading.Event()
        self.reads, self.wrongs, self.gone = 0, [], 0

    def run(self) -> None:
        while not self.wrongs and (not self.ending.is_set() or self.reads < READS):
            try:
                table = self._read(present(self._place))
            except Exception as error:  # noqa: BLE001 - each of them says it in another way
                self._note(str(error))
                continue
            self.reads += 1
            if problem := wrong(table):
                self.wrongs.append(problem)

    def _note(self, said: str) -> None:
        """A file that went while it was read is the only thing that may go wrong: whoever reads, reads again."""
        if "No such file" in said or "No files found" in said or "os error 2" in said or "not found" in said.lower():
            self.gone += 1
        else:
            self.wrongs.append(said)


READERS = {"pyiceberg": with_pyiceberg, "duckdb": with_duckdb, "polars": with_polars}


def test_readers_never_see_a_row_twice_or_a_wrong_one(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    publish(place.client, "/read", [b"n%d" % number for number in range(ROWS)])
    archive.run(place, {})
    readers = [Reader(name, read, place) for name, read in READERS.items()]
    for reader in readers:
        reader.start()

    for number in range(1, ROUNDS):
        publish(place.client, "/read", [b"n%d" % one for one in range(number * ROWS, (number + 1) * ROWS)])
        archive.run(place, {})
        compact.run(place, {"all": ""})
    for reader in readers:
        reader.ending.set()
        reader.join(60)

    assert [(reader.name, reader.wrongs) for reader in readers if reader.wrongs] == []
    assert all(reader.reads >= READS for reader in readers)
    assert all(reader.gone == 0 for reader in readers), "what was replaced stays for ten minutes"
    assert with_pyiceberg(present(place)).num_rows >= ROUNDS * ROWS


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_that_is_there_twice_would_be_noticed(
    tmp_path: Path, read: Callable[[str], pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotage: a compaction that leaves the old files in the table beside the new one."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    store, columns = open_store(tmp_path), [column.name for column in TABLES["events"]]
    rows = {"id": [1, 2], "index": [0, 1], "stream": ["/read"] * 2, "body": [b"n0", b"n1"], "time": [0, 1]}
    table = pa.table({name: rows.get(name, [None, None]) for name in columns}).cast(arrow_schema("events"))
    written = [write_file(store, LakeFile(0, 2, "1970-01-01", "events"), [table]) for _ in range(2)]
    made = Table.create(store, "events").append([one for one in written if one], now_ms=1)

    assert wrong(read(made.location)) == "a row was there twice"
