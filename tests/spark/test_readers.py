"""pyarrow, DuckDB and Polars read the lake while it is written and compacted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as dataset
import pytest

from penstock.pipeline.jobs import Workplace, archive, compact
from tests.spark.filling import publish

ROUNDS, ROWS, READS = 4, 2_000, 3
COLUMNS = ["id", "index", "stream", "body"]


def with_pyarrow(folder: Path) -> pa.Table:
    return dataset.dataset(folder, format="parquet").to_table(COLUMNS)


def with_duckdb(folder: Path) -> pa.Table:
    with duckdb.connect() as connection:
        query = f"SELECT {', '.join(COLUMNS)} FROM read_parquet('{folder}/*/*.parquet')"
        return connection.sql(query).to_arrow_table()


def with_polars(folder: Path) -> pa.Table:
    return polars.read_parquet(folder / "*" / "*.parquet", columns=COLUMNS).to_arrow()


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

    def __init__(self, name: str, read: Callable[[Path], pa.Table], folder: Path) -> None:
        super().__init__(name=name, daemon=True)
        self._read, self._folder = read, folder
        self.ending = threading.Event()
        self.reads, self.wrongs, self.gone = 0, [], 0

    def run(self) -> None:
        while not self.wrongs and (not self.ending.is_set() or self.reads < READS):
            try:
                table = self._read(self._folder)
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


READERS = {"pyarrow": with_pyarrow, "duckdb": with_duckdb, "polars": with_polars}


def test_readers_never_see_a_row_twice_or_a_wrong_one(place: Workplace) -> None:
    publish(place.client, "/read", [b"n%d" % number for number in range(ROWS)])
    archive.run(place, {})
    readers = [Reader(name, read, place.lake.root / "events") for name, read in READERS.items()]
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
    assert with_pyarrow(place.lake.root / "events").num_rows >= ROUNDS * ROWS


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_that_is_there_twice_would_be_noticed(tmp_path: Path, read: Callable[[Path], pa.Table]) -> None:
    """The sabotage: a compaction that leaves the old files beside the new one."""
    folder = tmp_path / "day=2026-11-15"
    folder.mkdir()
    rows = {"id": [1, 2], "index": [0, 1], "stream": ["/read"] * 2, "body": [b"n0", b"n1"]}
    for name in ("e-0-1", "e-0-2"):
        polars.DataFrame(rows).write_parquet(folder / f"{name}.parquet")

    assert wrong(read(tmp_path)) == "a row was there twice"
