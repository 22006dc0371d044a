"""The archive's short way: what the tasks copy is what the transform gives, in files that cold reads can use."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.core.arrow import schema
from penstock.pipeline.commit import Slice, StagedWrong
from penstock.pipeline.copying import copy_slices, write
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.staging import stage_slices
from penstock.pipeline.tables import GROUP_BYTES
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


def test_what_is_copied_is_what_the_transform_gives(place: Workplace, tmp_path: Path) -> None:
    publish_all_sorts(place)
    slices = slices_of(place, 3)
    assert len(slices) == 3
    cuts = ",".join(str(number) for number in (0, *(one.hi for one in slices)))
    options = {"url": place.client.url, "token": place.client.token, "cuts": cuts}
    frame = archive.transform(place.spark.read.format("penstock").options(**options).load())

    copied = copy_slices(place.spark.sparkContext, place.client, slices, tmp_path / "copied")
    framed = stage_slices(frame, tmp_path / "framed", "events", slices)

    for mine, its, one in zip(copied, framed, slices, strict=True):
        table = parquet.read_table(mine)
        assert table.num_rows == one.rows
        assert table.equals(parquet.read_table(its.path))
        assert str(parquet.read_schema(mine).remove_metadata()) == str(parquet.read_schema(its.path).remove_metadata())


def batch(first: int, rows: int, body: bytes) -> pa.RecordBatch:
    values = {"id": range(first, first + rows), "stream": ["/a", "/b"] * (rows // 2), "body": [body] * rows}
    columns = [pa.array(values.get(field.name, [None] * rows), field.type) for field in schema()]
    return pa.RecordBatch.from_arrays(columns, schema=schema())


def test_row_groups_are_small_and_say_what_is_in_them(tmp_path: Path) -> None:
    path, rows = tmp_path / "made.parquet", 100
    batches = [batch(1 + number * rows, rows, b"x" * 50_000) for number in range(5)]  # 5 MB each

    write(path, batches)

    metadata = parquet.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [2 * rows, 2 * rows, rows]
    assert all(group.total_byte_size < GROUP_BYTES + batches[0].nbytes for group in groups)
    ids, streams, bodies = ([group.column(place).statistics for group in groups] for place in (0, 1, 11))
    assert [(one.min, one.max) for one in ids] == [(1, 200), (201, 400), (401, 500)]
    assert {(one.min, one.max) for one in streams} == {("/a", "/b")}
    assert bodies == [None, None, None]  # they would be as long as the bodies


def test_a_slice_without_rows_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StagedWrong, match="no rows"):
        write(tmp_path / "made.parquet", [])

    assert list(tmp_path.iterdir()) == []
