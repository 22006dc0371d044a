"""Files written in tasks: what the archive copies is what its transform gives, and cold reads can use it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.core.arrow import schema
from penstock.iceberg.files import GROUP_BYTES, read_batches, write_file
from penstock.iceberg.store import open_store
from penstock.pipeline.commit import Intent, Slice
from penstock.pipeline.jobs import Workplace, archive
from penstock.wire.lake_files import LakeFile
from tests.spark.filling import fill


def publish_all_sorts(place: Workplace) -> None:
    """Entries with and without everything that an entry may have, those of the system among them."""
    fill(place.client, 500)
    place.client.call("POST", "/v1/publish", {"stream": "/kinds"}, b"")
    said = {"Event-Type": "order", "Event-Attributes": '{"a": "b"}', "Expires-In": "3600"}
    place.client.call("POST", "/v1/publish", {"stream": "/kinds"}, "Blütenstaub".encode(), said)


def slices_of(place: Workplace, parts: int) -> list[Slice]:
    plan = place.client.plan(0, place.client.newest(), parts=parts)
    return [Slice(one["lo"], one["hi"], one["day"], one["rows"]) for one in plan["slices"]]


def test_what_is_copied_is_what_the_transform_gives(place: Workplace) -> None:
    publish_all_sorts(place)
    slices = slices_of(place, 3)
    assert len(slices) == 3
    intent = Intent(0, slices[-1].hi, tuple(slices))

    copied, framed = (archive._write(place, intent, transform) for transform in (None, archive.transform))

    for mine, its, one in zip(copied, framed, slices, strict=True):
        assert (mine.rows, its.rows) == (one.rows, one.rows)
        read = [list(read_batches(place.lake.store, file.location)) for file in (mine, its)]
        assert pa.Table.from_batches(read[0]).equals(pa.Table.from_batches(read[1]))
        assert mine.metadata.schema.equals(its.metadata.schema)


def batch(first: int, rows: int, body: bytes) -> pa.RecordBatch:
    values = {"id": range(first, first + rows), "stream": ["/a", "/b"] * (rows // 2), "body": [body] * rows}
    columns = [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema()]
    return pa.RecordBatch.from_arrays(columns, schema=schema())


def test_row_groups_are_small_and_say_what_is_in_them(tmp_path: Path) -> None:
    rows = 100
    batches = [batch(1 + number * rows, rows, b"x" * 50_000) for number in range(5)]  # 5 MB each

    written = write_file(open_store(tmp_path), LakeFile(0, 500, "2026-11-15", "events"), batches)

    assert written is not None
    metadata = written.metadata
    assert metadata.equals(parquet.read_metadata(written.location.removeprefix("file://")))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [2 * rows, 2 * rows, rows]
    assert all(group.total_byte_size < GROUP_BYTES + batches[0].nbytes for group in groups)
    ids, streams, bodies = ([group.column(place).statistics for group in groups] for place in (0, 1, 11))
    assert [(one.min, one.max) for one in ids] == [(1, 200), (201, 400), (401, 500)]
    assert {(one.min, one.max) for one in streams} == {("/a", "/b")}
    assert bodies == [None, None, None]  # they would be as long as the bodies


def test_a_slice_without_rows_is_no_file(tmp_path: Path) -> None:
    assert write_file(open_store(tmp_path), LakeFile(0, 1, "2026-11-15", "events"), []) is None

    assert list(tmp_path.iterdir()) == []
