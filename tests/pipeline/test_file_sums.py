"""Sums over a file of events: a row for each stream and chunk, with all that the audit's checks look at."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import open_store
from penstock.pipeline.file_sums import SUMS, SumUpFile
from penstock.wire.lake_files import LakeFile


def test_a_file_is_summed_up_by_stream_and_chunk(tmp_path: Path) -> None:
    rows = [
        # id, stream, index, chunk, offset, size: /a has a line of meta, and goes on in a second chunk
        (1, "/a", 0, 0, 0, 10),
        (2, "/b", 0, 0, 0, 5),
        (3, "/a", None, 0, 10, 7),
        (4, "/a", 1, 0, 17, 3),
        (4, "/a", 1, 0, 17, 3),  # twice
        (5, "/a", 2, 1, 0, 4),
        (6, "/b", None, 0, 0, 0),  # a part has no line
    ]
    names = ("id", "stream", "index", "chunk", "offset", "size")
    given = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    schema = arrow_schema("events")
    table = pa.table([pa.array(given.get(one.name, [None] * len(rows)), one.type) for one in schema], schema=schema)
    store = open_store(tmp_path)
    written = write_file(store, LakeFile(0, 6, "2026-11-15", "events"), [table])
    assert written

    SumUpFile(store, written.location, "_audit/sums.parquet").run()

    found = parquet.read_table(tmp_path / "_audit" / "sums.parquet")
    assert found.column_names == [one.split()[0] for one in SUMS.split(", ")]
    file = written.location.rpartition("/")[2]
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
        # rows, ids, first and last id, first and last index, indexes, begin, end, bytes
        (file, "/a", 0, 4, 3, 1, 4, 0, 1, 2, 0, 20, 23),
        (file, "/a", 1, 1, 1, 5, 5, 2, 2, 1, 0, 4, 4),
        (file, "/b", 0, 2, 2, 2, 6, 0, 0, 1, 0, 5, 5),
    ]
