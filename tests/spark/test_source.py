"""`format("penstock")`: batch and streaming reads, batch and streaming writes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.offsets import Cut
from penstock.pipeline.publishing import PublishRequest
from penstock.pipeline.sink import StagedFile, WriterTaken, _Sink
from penstock.pipeline.source import CutOff, Part, PenstockSource, _checked
from penstock.testing import RunningServer
from tests.spark.filling import publish

BODIES = StructType.fromJson(
    {"type": "struct", "fields": [{"name": "body", "type": "binary", "nullable": True, "metadata": {}}]}
)


@pytest.fixture(scope="module")
def client(shared_server: RunningServer) -> PipelineClient:
    return PipelineClient(shared_server.url, shared_server.admin_token)


def reading(spark: SparkSession, client: PipelineClient, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("url", client.url).option("token", client.token)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def streaming(spark: SparkSession, client: PipelineClient, **options: object) -> DataFrame:
    reader = spark.readStream.format("penstock").option("url", client.url).option("token", client.token)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.orderBy("id").select("body").collect()]


def lines(count: int, prefix: bytes = b"e") -> list[bytes]:
    return [prefix + b"%d" % number for number in range(count)]


# ── batch reads ────────────────────────────────────────────────────────────────────────────────


def test_a_read_gives_every_row_once_whatever_the_partitions(spark: SparkSession, client: PipelineClient) -> None:
    publish(client, "/source/batch", lines(3_000))

    for partitions in (1, 7):
        frame = reading(spark, client, streams="/source/batch", partitions=partitions)
        assert bodies(frame.where("kind = 'data'")) == lines(3_000)


def test_filters_on_ids_and_streams_narrow_what_is_exported(spark: SparkSession, client: PipelineClient) -> None:
    publish(client, "/source/filters", lines(100))
    ids = sorted(row.id for row in reading(spark, client, streams="/source/filters", columns="id").collect())

    frame = reading(spark, client)
    found = frame.where((F.col("id") > ids[10]) & (F.col("id") <= ids[20]) & (F.col("stream") == "/source/filters"))

    assert sorted(row.id for row in found.select("id").collect()) == ids[11:21]


def test_a_read_by_time_and_by_ids_ends_where_it_is_told_to(spark: SparkSession, client: PipelineClient) -> None:
    publish(client, "/source/range", lines(10))
    newest = client.newest()

    assert reading(spark, client, streams="/source/range", upto=newest, after=newest).count() == 0
    assert reading(spark, client, streams="/source/range", until="2020-01-01").count() == 0
    assert reading(spark, client, streams="/source/range", since="2020-01-01", columns="id").columns == ["id"]


def test_an_option_that_is_wrong_is_told(spark: SparkSession, client: PipelineClient) -> None:
    with pytest.raises(PySparkException, match="is unknown"):
        reading(spark, client, stream="/source/range")


def test_spark_finds_the_source_by_itself() -> None:
    import pyspark_penstock

    assert pyspark_penstock.DefaultSource is PenstockSource
    assert PenstockSource.name() == "penstock"


# ── an export that is cut off ──────────────────────────────────────────────────────────────────


def stream_of(rows: int, trailer: bool, said: int | None = None) -> Any:
    """An export of *rows* rows, with or without its last message."""
    schema = pa.schema([("id", pa.int64())])
    out = io.BytesIO()
    writer = pa.ipc.new_stream(out, schema)
    writer.write_batch(pa.record_batch([pa.array(range(rows))], schema))
    if trailer:
        metadata = {"rows": str(rows if said is None else said), "upto": "10"}
        writer.write_batch(pa.record_batch([pa.array([], pa.int64())], schema), custom_metadata=metadata)
    return pa.ipc.open_stream(pa.BufferReader(out.getvalue()))


def rows_read(reader: Any) -> int:
    return sum(batch.num_rows for batch in _checked(reader, Part(Cut(0, 10))))


def test_an_export_with_its_last_message_is_whole() -> None:
    assert rows_read(stream_of(7, trailer=True)) == 7


@pytest.mark.parametrize("reader", [stream_of(7, trailer=False), stream_of(7, trailer=True, said=8)])
def test_an_export_that_was_cut_off_fails_the_task(reader: Any) -> None:
    with pytest.raises(CutOff):
        rows_read(reader)


# ── streaming reads ────────────────────────────────────────────────────────────────────────────


def run_to_end(frame: DataFrame, checkpoint: Path, into: Path) -> None:
    query = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start(str(into)).awaitTermination()


def test_available_now_reads_all_there_is_in_limited_batches(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    publish(client, "/source/now", lines(2_500))
    stream = streaming(
        spark, client, streams="/source/now", consumer="now", maxEventsPerTrigger=1_000 + client.newest() // 3
    )

    run_to_end(stream, tmp_path / "checkpoint", tmp_path / "out")

    read = spark.read.parquet(str(tmp_path / "out"))
    assert bodies(read.where("kind = 'data'")) == lines(2_500)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) > 1


def test_a_restart_with_other_options_goes_on_where_the_last_run_ended(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    publish(client, "/source/again", lines(1_000))
    run_to_end(
        streaming(spark, client, streams="/source/again", consumer="again", partitions=3),
        tmp_path / "c",
        tmp_path / "o",
    )
    publish(client, "/source/again", lines(500, b"later"))

    run_to_end(
        streaming(spark, client, streams="/source/again", consumer="again", partitions=1),
        tmp_path / "c",
        tmp_path / "o",
    )

    read = spark.read.parquet(str(tmp_path / "o"))
    assert bodies(read.where("kind = 'data'")) == lines(1_000) + lines(500, b"later")


def test_latest_stays_where_it_was_when_the_consumer_was_first_seen(
    spark: SparkSession, client: PipelineClient, tmp_path: Path
) -> None:
    publish(client, "/source/latest", [b"before"])
    client.begin("late", {"position": "latest"})
    publish(client, "/source/latest", [b"after"])

    stream = streaming(spark, client, streams="/source/latest", consumer="late", startingPosition="latest")
    run_to_end(stream, tmp_path / "c", tmp_path / "o")

    assert bodies(spark.read.parquet(str(tmp_path / "o"))) == [b"after"]


def test_a_stream_without_a_consumer_is_refused(spark: SparkSession, client: PipelineClient, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="consumer"):
        run_to_end(streaming(spark, client, streams="/source/now"), tmp_path / "c", tmp_path / "o")


# ── the sink ───────────────────────────────────────────────────────────────────────────────────


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
