"""What a sink refuses before anything is published. No JVM is needed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import InputInvalid
from penstock.iceberg.store import open_store
from penstock.pipeline import publishing, sink_files
from penstock.pipeline.publishing import NewEvent
from penstock.pipeline.sink import BatchSink, StreamSink, sink_options
from penstock.testing import RunningServer
from tests.api.client import ask


def schema(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def options(folder: Path, **more: str) -> dict[str, str]:
    return {"url": "http://127.0.0.1:1", "token": "t", "writer": "w", "staging": str(folder), "stream": "/a", **more}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"epoch": "soon"}, "option epoch"),
        ({"epoch": "0"}, "option epoch"),
        ({"batch": "-1"}, "option batch"),
        ({"batch": str(2**43)}, "option batch"),
        ({"writer": "a/b"}, "option writer"),
        ({"writer": ""}, "option writer: is missing"),
        ({"strem": "/b"}, "is unknown"),
        ({"staging": "nowhere://bucket"}, "option staging: .* cannot be opened"),
        ({"publish": "later"}, "option publish"),
        ({"publish": "commit", "staging": ""}, "option staging: is missing"),
        ({"publish": "commit", "staging": "", "checkpointLocation": "nowhere://x"}, "cannot be opened"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(tmp_path: Path, more: dict[str, str], said: str) -> None:
    with pytest.raises(InputInvalid, match=said):
        sink_options(options(tmp_path, **more), schema("body"))


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"staging": "/x%20y"}, "file:///x%20y/penstock-sink"),
        ({"staging": "s3://bucket/x/"}, "s3://bucket/x/penstock-sink"),
        ({"staging": "", "checkpointLocation": "file:/y%20z"}, "file:///y z/penstock-sink"),
        ({"staging": "", "checkpointLocation": "s3a://bucket/z"}, f"file://{tempfile.gettempdir()}/penstock-sink"),
        ({"staging": "", "checkpointLocation": "s3a://bucket/z", "publish": "commit"}, "s3://bucket/z/penstock-sink"),
        ({"staging": ""}, f"file://{tempfile.gettempdir()}/penstock-sink"),
    ],
)
def test_tasks_stage_where_they_can_write(tmp_path: Path, more: dict[str, str], where: str) -> None:
    assert open_store(sink_options(options(tmp_path, **more), schema("body")).staging).url == where


@pytest.mark.parametrize("columns", [("stream",), ("body", "extra"), ("body", "stream")])
def test_columns_must_be_those_of_an_event(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(InputInvalid):
        sink_options(options(tmp_path), schema(*columns))


@given(st.lists(st.builds(NewEvent, st.sampled_from(["/a", "/b", "/c"]), st.binary(max_size=2)), max_size=40))
def test_rows_of_a_stream_keep_their_order_when_they_are_put_together(given: list[NewEvent]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_files, "WINDOW_ROWS", 10)
        found = list(sink_files.by_stream(given))

    for stream in ("/a", "/b", "/c"):
        assert [e for e in found if e.stream == stream] == [e for e in given if e.stream == stream]
    assert len(found) == len(given)
    runs = sum(one.stream != other.stream for one, other in pairwise(found)) + bool(found)
    assert runs <= 3 * (1 + len(given) // 10)


def test_a_row_that_does_not_say_where_to_fails_its_task(tmp_path: Path) -> None:
    given = options(tmp_path)
    del given["stream"]
    sink = StreamSink(given, schema("stream", "body"))
    batch = pa.RecordBatch.from_pydict({"stream": ["/a", None], "body": ["1", "2"]})

    with pytest.raises(InputInvalid, match="column stream: is null in 1 rows"):
        sink._sink.stage(iter([batch]))


def test_a_log_cannot_be_overwritten(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="cannot be overwrite"):
        BatchSink(options(tmp_path), schema("body"), overwrite=True)


def published(server: RunningServer, folder: Path, *, times: int) -> list[str]:
    """What is in the log after a batch of ten requests was committed so many times, each time from the beginning."""
    given = options(folder, url=server.url, token=server.admin_token, writer=folder.name, stream=f"/{folder.name}")
    rows = pa.RecordBatch.from_pydict({"body": [f"{number}\n" for number in range(10)]})  # no line: one request each
    sink = StreamSink(given, schema("body"))
    for batch in (0, 1):
        message = sink._sink.stage(iter([rows]))
        for _ in range(times):
            with closing(sink._sink._sink.client()) as client:
                sink._sink._publish_files(client, [message], batch)
    entries = ask(server, "GET", "/v1/read", stream=f"/{folder.name}", limit=100).json["entries"]
    return [entry["data"] for entry in entries]


def all_under_one_name(producer: str, batch: int, number: int) -> tuple[str, int]:
    """Sabotage: numbers run into those of the next batch."""
    return producer, batch * publishing.PER_BATCH + number


@pytest.mark.parametrize("sabotage", [None, all_under_one_name])
def test_a_batch_may_have_more_requests_than_numbers(
    shared_server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sabotage: Callable[[str, int, int], tuple[str, int]] | None,
) -> None:
    monkeypatch.setattr(publishing, "PER_BATCH", 3)
    if sabotage:
        monkeypatch.setattr("penstock.pipeline.sink.sequence_of", sabotage)

    found = published(shared_server, tmp_path, times=2)

    assert (found == [f"{number}\n" for _ in range(2) for number in range(10)]) is (sabotage is None)
