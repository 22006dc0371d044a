"""Sums over a file of events: a row for each stream and chunk, with all that the audit's checks look at."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import FileStore, open_store
from penstock.pipeline.file_sums import FOLDER, SUMS, RemoveSums, SumsOfFile
from penstock.wire.lake_files import LakeFile, parse_location


def write_events(store: FileStore, rows: list[tuple[object, ...]]) -> LakeFile:
    names = ("id", "stream", "index", "chunk", "offset", "size")
    given = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    schema = arrow_schema("events")
    table = pa.table([pa.array(given.get(one.name, [None] * len(rows)), one.type) for one in schema], schema=schema)
    written = write_file(store, LakeFile(0, 6, "2026-11-15", "events"), [table])
    file = parse_location(written.location) if written else None
    assert file
    return file


def sums(store: FileStore, file: LakeFile, *, afresh: bool = False) -> pa.Table:
    return pa.Table.from_batches(SumsOfFile(store, afresh)(file))


def test_a_file_is_summed_up_by_stream_and_chunk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    rows: list[tuple[object, ...]] = [
        # id, stream, index, chunk, offset, size: /a has a line of meta, and goes on in a second chunk
        (1, "/a", 0, 0, 0, 10),
        (2, "/b", 0, 0, 0, 5),
        (3, "/a", None, 0, 10, 7),
        (4, "/a", 1, 0, 17, 3),
        (4, "/a", 1, 0, 17, 3),  # twice
        (5, "/a", 2, 1, 0, 4),
        (6, "/b", None, 0, 0, 0),  # a part has no line
    ]
    written = write_events(store, rows)

    found = sums(store, written)

    assert found.column_names == [one.split()[0] for one in SUMS.split(", ")]
    file = written.name
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
        # rows, ids, first and last id, first and last index, indexes, begin, end, bytes
        (file, "/a", 0, 4, 3, 1, 4, 0, 1, 2, 0, 20, 23),
        (file, "/a", 1, 1, 1, 5, 5, 2, 2, 1, 0, 4, 4),
        (file, "/b", 0, 2, 2, 2, 6, 0, 0, 1, 0, 5, 5),
    ]


LINE = (1, "/a", 0, 0, 0, 10)


def test_sums_are_made_once_and_again_for_other_bytes_under_the_same_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    file = write_events(store, [LINE])
    kept = Path(store.place(f"{FOLDER}/day={file.day}/{file.name}"))
    first = sums(store, file)
    made = kept.stat().st_ino

    assert sums(store, file) == first
    assert kept.stat().st_ino == made, "they were made again"
    other = write_events(store, [LINE, (2, "/a", 1, 0, 10, 10)])
    Path(store.place(other.path)).replace(store.place(file.path))
    assert sums(store, file)["rows"].to_pylist() == [2]
    made = kept.stat().st_ino
    assert sums(store, file, afresh=True)["rows"].to_pylist() == [2]
    assert kept.stat().st_ino != made
    kept.write_bytes(b"no Parquet")
    assert sums(store, file)["rows"].to_pylist() == [2]


def test_a_file_that_is_gone_is_named_and_its_sums_are_removed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    gone, file = write_events(store, [LINE]), write_events(store, [LINE])
    for one in (gone, file):
        assert sums(store, one)["rows"].to_pylist() == [1]
    store.delete([gone.path])

    assert RemoveSums(store, list(store.folders(FOLDER))).run() == 1
    assert [one.path for one in store.list(FOLDER)] == [f"{FOLDER}/day={file.day}/{file.name}"]
    assert [(row["file"], row["stream"]) for row in sums(store, gone).to_pylist()] == [(gone.path, None)]
