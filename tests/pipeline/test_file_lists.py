"""What a driver keeps of the files of a table, where it looks at all of them, is small however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import FileStore, open_store
from penstock.iceberg.tables import Table
from penstock.pipeline.file_lists import OfEachFile, list_files
from penstock.wire.lake_files import LakeFile, parse_location

FILES = 20_000


def locations(store: FileStore, count: int = FILES) -> Iterator[str]:
    """Addresses as manifests give them: objects of their own."""
    for number in range(count):
        lo, day = 50_000 * number, f"2026-{1 + number // 28 % 12:02d}-{1 + number % 28:02d}"
        yield store.location(LakeFile(lo, lo + 50_000, day, "events", f"{number:016x}").path)


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    kept = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept
    return peak


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: files as objects"])
def test_a_list_of_files_and_its_groups_take_little_of_each(tmp_path: Path, sabotaged: bool) -> None:
    store = open_store(tmp_path)

    def handle() -> object:
        if sabotaged:
            return [parse_location(one) for one in locations(store)]
        files = list_files(store, "events", locations(store))
        return sum(one.hi - one.lo for one in files), files.groups(FILES // 16)

    found = peak_of(handle) / FILES
    assert (found < 100) is not sabotaged, f"{found} bytes of Python's for each file"
    assert list_files(store, "events", locations(store)).names.nbytes / FILES < 50


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: planned files"])
def test_the_manifests_of_a_table_are_read_and_not_kept(tmp_path: Path, sabotaged: bool) -> None:
    store = open_store(tmp_path)
    row = pa.Table.from_pylist([{"id": 1, "stream": "/a", "index": 0}], arrow_schema("events"))
    written = write_file(store, LakeFile(0, 1, "2026-11-15", "events"), [row])
    assert written
    table = Table.create(store, "events")
    for begin in range(0, 900, 300):
        some = [replace(written, location=one) for one in list(locations(store, 900))[begin : begin + 300]]
        table = table.append(some, now_ms=0).table
    opened = Table.open(store, table.location)

    tracemalloc.start()
    files = opened.files() if sabotaged else list_files(store, "events", opened.locations())
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert len(files) == 900
    assert (kept / 900 < 100) is not sabotaged, f"{kept / 900} bytes of Python's are kept for each file"


def test_groups_have_each_file_once_and_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    files = list_files(store, "events", reversed(list(locations(store, 100))))
    wanted = [parse_location(one) for one in locations(store, 100)]
    seen: list[LakeFile] = []

    def see(file: LakeFile) -> Iterator[pa.RecordBatch]:
        seen.append(file)
        return iter(())

    groups = files.groups(7)
    assert len(groups) == 7
    assert list(OfEachFile("events", see)(iter([pa.record_batch([pa.array(groups)], ["files"])]))) == []
    assert seen == list(files) == wanted
    assert list(files.between(100_000, 150_001)) == wanted[2:4]
    assert files.between(0, 0).groups(7) == []


def test_a_file_that_its_name_does_not_tell_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    for odd in ("events/data/day=2026-11-15/e-1-2-3.parquet", "ledger/data/day=2026-11-15/l-000000000000-0-1.parquet"):
        with pytest.raises(ValueError, match="not named like"):
            list_files(store, "events", [store.location(odd)])
