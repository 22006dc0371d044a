"""What a sink refuses before anything is published. No JVM is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import InputInvalid
from penstock.pipeline.sink import BatchSink, StreamSink, sink_options


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
        ({"staging": "s3://bucket"}, "is not a folder"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(tmp_path: Path, more: dict[str, str], said: str) -> None:
    with pytest.raises(InputInvalid, match=said):
        sink_options(options(tmp_path, **more), schema("body"))


@pytest.mark.parametrize("columns", [("stream",), ("body", "extra"), ("body", "stream")])
def test_columns_must_be_those_of_an_event(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(InputInvalid):
        sink_options(options(tmp_path), schema(*columns))


def test_a_row_that_does_not_say_where_to_fails_its_task(tmp_path: Path) -> None:
    given = options(tmp_path)
    del given["stream"]
    sink = StreamSink(given, schema("stream", "body"))
    batch = pa.RecordBatch.from_pydict({"stream": ["/a", None], "body": ["1", "2"]})

    with pytest.raises(InputInvalid, match="column stream: is null in 1 rows"):
        sink.write(iter([batch]))


def test_a_log_cannot_be_overwritten(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="cannot be overwrite"):
        BatchSink(options(tmp_path), schema("body"), overwrite=True)
