"""`format("penstock")`: batch and streaming writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.publishing import PublishRequest
from penstock.pipeline.sink import StagedFile, WriterTaken, _Sink
from tests.spark.filling import publish
from tests.spark.test_source import client, lines, streaming

__all__ = ["client"]
BODIES = StructType.fromJson(
    {"type": "struct", "fields": [{"name": "body", "type": "binary", "nullable": True, "metadata": {}}]}
)


def published(client: PipelineClient, stream: str) -> list[str]:
    asked = {"stream": stream, "from": 0, "limit": 1000}
    return [entry["data"] for entry in client.call("GET", "/v1/read", asked)["entries"]]


def writing(frame: DataFrame, client: PipelineClient, staging: Path, **options: object) -> None:
    writer = frame.write.format("penstock").mode("append").option("url", client.url).option("token", client.token)
    writer.options(staging=str(staging), **{name: str(value) for name, value in options.items()}).save()


def test_a_batch_that_is_written_again_adds_nothing(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    rows = [("/sink/batch", bytearray(line)) for line in lines(300)]
    frame = spark.createDataFrame(rows, "stream STRING, body BINARY").coalesce(1)

    for _ in range(2):
        writing(frame, client, tmp_path, writer="orders", batch=1)

    assert published(client, "/sink/batch") == [line.decode() for line in lines(300)]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_stream_is_written_once_also_when_its_checkpoint_is_lost(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    publish(client, "/sink/from", lines(200))
    source = streaming(spark, client, streams="/sink/from", consumer="sink", columns="kind,body").where("kind = 'data'")

    def run(checkpoint: Path) -> None:
        query = source.select("body").writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
        query = query.options(url=client.url, token=client.token, writer="copy", stream="/sink/to")
        query.trigger(availableNow=True).start().awaitTermination()

    run(tmp_path / "one")
    run(tmp_path / "one")
    assert sorted(published(client, "/sink/to")) == sorted(line.decode() for line in lines(200))

    with pytest.raises(StreamingQueryException, match="in use by another query"):
        run(tmp_path / "two")
    assert len(published(client, "/sink/to")) == 200


class Sink(_Sink):
    """A sink that can be made to end after some requests."""

    def __init__(self, client: PipelineClient, staging: Path, writer: str, *, ends_after: int = 10**9) -> None:
        options = {"url": client.url, "token": client.token, "writer": writer, "stream": f"/sink/{writer}"}
        super().__init__({**options, "staging": str(staging)}, BODIES)
        self._left = ends_after

    def stage_bodies(self, bodies: list[bytes], query: str = "q") -> StagedFile:
        schema = pa.schema([("body", pa.binary())])
        staged = self.stage(iter([pa.record_batch([pa.array(bodies, pa.binary())], schema)]))
        return StagedFile(staged.path, staged.rows, query)

    def _send(self, request: PublishRequest, producer: str, sequence: int) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        super()._send(request, producer, sequence)


class Forgetful(Sink):
    """The sabotage: it publishes what came last instead of what its manifest says."""

    def _manifest(self, batch: int, staged: Any) -> list[StagedFile]:
        return list(staged)


FIRST, SECOND = ([b"%s\n%d" % (name, number) for number in range(5)] for name in (b"a", b"b"))
"""Each of them is a request of its own, as they are no lines."""


def write_twice(sink: type[Sink], client: PipelineClient, staging: Path, writer: str) -> list[str]:
    """Write a batch that ends in the middle, and once more with its rows in another order."""
    ending = sink(client, staging, writer, ends_after=7)
    with pytest.raises(KeyboardInterrupt):
        ending.publish([ending.stage_bodies(FIRST), ending.stage_bodies(SECOND)], 4)
    again = sink(client, staging, writer)
    again.publish([again.stage_bodies(SECOND), again.stage_bodies(FIRST)], 4)
    return published(client, f"/sink/{writer}")


def test_a_commit_that_ended_in_the_middle_goes_on_from_its_manifest(client: PipelineClient, tmp_path: Path) -> None:
    assert write_twice(Sink, client, tmp_path, "middle") == [body.decode() for body in FIRST + SECOND]
    assert list((tmp_path / "penstock-sink").iterdir()) == []


def test_without_the_manifest_rows_are_lost_and_doubled(client: PipelineClient, tmp_path: Path) -> None:
    assert write_twice(Forgetful, client, tmp_path, "forgetful") != [body.decode() for body in FIRST + SECOND]


def test_a_batch_long_gone_adds_nothing(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "long")
    for batch in (1, 2, 1):
        sink.publish([sink.stage_bodies([b"%d" % batch])], batch)

    assert published(client, "/sink/long") == ["1", "2"]


def test_a_writer_s_name_belongs_to_one_query_until_a_new_epoch(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "named")
    sink.publish([sink.stage_bodies([b"one"], "query-1")], 0)

    with pytest.raises(WriterTaken, match="in epoch 1"):
        sink.publish([sink.stage_bodies([b"two"], "query-2")], 1)
    sink._sink = type(sink._sink)(client, "named", 2, "/sink/named", sink._sink.staging)
    sink.publish([sink.stage_bodies([b"three"], "query-2")], 0)

    assert published(client, "/sink/named") == ["one", "three"]


def test_bodies_that_are_no_lines_come_out_as_they_went_in(client: PipelineClient, tmp_path: Path) -> None:
    sink = Sink(client, tmp_path, "odd")
    odd = [b"two\nlines", b"", b"plain", b"ends\r", b"plain too"]

    sink.publish([sink.stage_bodies(odd)], 0)

    assert published(client, "/sink/odd") == [body.decode() for body in odd]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"writer": ""}, "writer"),
        ({"writer": "a/b"}, "'/'"),
        ({"stream": ""}, "column or an option"),
        ({"x": "1"}, "unknown"),
    ],
)
def test_a_write_that_cannot_be_is_refused(
    client: PipelineClient, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    good = {"url": client.url, "token": client.token, "writer": "w", "stream": "/s", "staging": str(tmp_path)}

    with pytest.raises(Exception, match=said):
        _Sink({**good, **options}, BODIES)


def test_overwriting_is_refused(spark: SparkSession, client: PipelineClient, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(bytearray(b"x"),)], "body BINARY")
    writer = frame.write.format("penstock").mode("overwrite").options(url=client.url, token=client.token, writer="w")

    with pytest.raises(PySparkException, match="only added to"):
        writer.options(stream="/s", staging=str(tmp_path)).save()
