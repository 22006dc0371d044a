"""`format("penstock")`: batch and streaming reads, batch and streaming writes."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import GreaterThan
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, _parse_datatype_string

from penstock.pipeline import register
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.source import (
    CutOff,
    LogReader,
    LogStreamReader,
    Part,
    PenstockSource,
    PositionBeyondLog,
    _checked,
)
from penstock.pipeline.source_offsets import Cut, offset_of
from penstock.testing import RunningServer
from tests.api.lake_rig import trim
from tests.spark.filling import publish
from tests.spark.recording import recording


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


def with_pushdown(spark: SparkSession, on: bool) -> SparkSession:
    """A session of its own, set as Spark is by default or with filters pushed down."""
    other = spark.newSession()
    other.conf.set("spark.sql.python.filterPushdown.enabled", str(on).lower())
    register(other)
    return other


def test_filters_are_pushed_where_spark_does_that_and_give_the_same_rows_where_not(
    spark: SparkSession, shared_server: RunningServer, client: PipelineClient
) -> None:
    publish(client, "/source/filters", lines(100))
    ids = sorted(row.id for row in reading(spark, client, streams="/source/filters", columns="id").collect())
    middle = (F.col("id") > ids[10]) & (F.col("id") <= ids[20])
    filters: dict[str, tuple[Column, int, set[str | None]]] = {
        "id": (middle & (F.col("stream") == "/source/filters"), 10, {"/source/filters"}),
        "stream": (middle & F.col("stream").isin("/source/filters", "/source/none"), 10,
                   {"/source/filters,/source/none"}),
        "no name": (middle & F.col("stream").isin("/source/filters", "a,b"), 10, {"/source/filters"}),
        "never": (F.col("stream") == "*", 0, set()),
        "before": (F.col("time") < F.lit("2020-01-01").cast("timestamp"), 0, set()),
        "since": ((F.col("time") >= F.lit("2020-01-01").cast("timestamp")) & middle, 10, {None}),
    }  # fmt: skip

    for wanted, most, streams in filters.values():
        found = []
        for on in (False, True):
            with recording(shared_server) as server:
                frame = reading(with_pushdown(spark, on), PipelineClient(server.url, client.token))
                found.append(sorted(row.id for row in frame.where(wanted).select("id").collect()))
            if on:
                assert server.ids() <= most
                assert {one.get("streams") for one in server.asked("/v1/log/arrow")} == streams
            else:
                assert server.ids() > 10
        assert found[0] == found[1] == (ids[11:21] if most else [])


def test_a_filter_narrows_the_streams_of_the_options_and_never_widens_them(
    spark: SparkSession, client: PipelineClient
) -> None:
    publish(client, "/source/narrow/a", lines(3))
    publish(client, "/source/narrow/b", lines(4))

    frame = reading(spark, client, streams="/source/narrow/*").where("kind = 'data'")
    assert frame.where("stream = '/source/narrow/a'").count() == 3
    assert frame.where("stream = '/source/filters'").count() == 0


def test_a_time_is_looked_for_with_a_margin_for_clocks(shared_server: RunningServer, client: PipelineClient) -> None:
    publish(client, "/source/margin", lines(5))
    asked = []
    for hours in (0, 3):  # of what was published now, and of what will be published in some hours
        with recording(shared_server) as server:
            options = {"url": server.url, "token": client.token}
            reader = LogReader(options, _parse_datatype_string(PenstockSource(options).schema()))
            reader.pushFilters([GreaterThan(("time",), datetime.now(UTC) + timedelta(hours=hours))])
            asked.append(bool(reader.partitions()))

    assert asked == [True, False]


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


class BeginsAnew(LogReader):
    """Sabotage: after an export broke off it asks for the last batch once more."""

    def _last_id(self, batch: pa.RecordBatch) -> int:
        return int(batch["id"][0].as_py())


def ids_read(server: RunningServer, upto: int, make: type[LogReader]) -> tuple[list[int], int]:
    """The ids that a task reads although its first export breaks off in the middle, and how often it asked."""
    passed = 0

    def cut_once(data: bytes) -> bytes:
        nonlocal passed
        before, passed = passed, passed + len(data)
        if before < 2_000_000 <= passed:  # the first batch has come, the second has not
            raise ConnectionResetError
        return data

    with recording(server, cut_once) as proxy:
        options = {"url": proxy.url, "token": server.admin_token, "columns": "id,body"}
        reader = make(options, StructType([StructField("id", LongType()), StructField("body", BinaryType())]))
        batches = list(reader.read(Part(Cut(0, upto))))
        return [id for batch in batches for id in batch["id"].to_pylist()], len(proxy.asked("/v1/log/arrow"))


def test_a_read_goes_on_after_the_last_row_when_an_export_breaks_off(server: RunningServer) -> None:
    client = PipelineClient(server.url, server.admin_token)
    publish(client, "/cut", [b"x" * 1_000] * 4_000)
    upto = client.newest()

    assert ids_read(server, upto, LogReader) == (list(range(1, upto + 1)), 2)
    assert ids_read(server, upto, BeginsAnew) != (list(range(1, upto + 1)), 2)


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


# ── lag, and what was trimmed ──────────────────────────────────────────────────────────────────


def progress(frame: DataFrame, checkpoint: Path) -> list[Any]:
    """What the one source of a query said of each of its batches."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return [json.loads(one.json)["sources"][0] for one in running.recentProgress]


def test_a_query_says_how_far_it_is_behind(spark: SparkSession, server: RunningServer, tmp_path: Path) -> None:
    client = PipelineClient(server.url, server.admin_token)
    publish(client, "/lag", lines(3_000))
    stream = streaming(spark, client, streams="/lag", consumer="lag", columns="id", maxEventsPerTrigger=1_200)

    said = progress(stream, tmp_path / "c")

    ends = [one["endOffset"]["upto"] for one in said]
    assert [one["latestOffset"]["lag"] for one in said] == [client.newest() - end for end in ends]
    assert said[0]["latestOffset"]["lag"] > 1_500
    assert said[-1]["latestOffset"] == {"upto": client.newest(), "lag": 0}


def trimmed_under_a_query(spark: SparkSession, server: RunningServer, folder: Path) -> PipelineClient:
    """A query has read 1,000 rows; then 2,000 more came, and the first 1,500 of all were trimmed."""
    client = PipelineClient(server.url, server.admin_token)
    publish(client, "/trim", lines(1_000))
    progress(streaming(spark, client, consumer="trim", columns="id"), folder)
    publish(client, "/trim", lines(2_000))
    assert trim(server, upto=client.newest() - 1_500, apply=True).status == 200
    return client


def test_a_query_that_lost_rows_to_the_trim_ends_unless_it_may_go_on(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    client = trimmed_under_a_query(spark, server, tmp_path / "c")
    newest = client.newest()

    with pytest.raises(StreamingQueryException, match=r"were trimmed from the log(.|\n)*failOnDataLoss"):
        progress(streaming(spark, client, consumer="trim", columns="id"), tmp_path / "c")

    allowed = streaming(spark, client, consumer="trim", columns="id", failOnDataLoss="false")
    said = progress(allowed, tmp_path / "c")
    lost = [int(number) for number in said[0]["endOffset"]["lost"].split(",")]
    assert lost == [said[0]["startOffset"]["upto"], newest - 1_500]
    assert sum(one["numInputRows"] for one in said) == 1_500
    # And it goes on from there as ever
    publish(client, "/trim", lines(7))
    assert sum(one["numInputRows"] for one in progress(streaming(spark, client, consumer="trim", columns="id"),
                                                       tmp_path / "c")) == 7  # fmt: skip


def test_a_read_of_what_was_trimmed_is_refused_unless_it_may_go_on(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    client = trimmed_under_a_query(spark, server, tmp_path / "c")

    with pytest.raises(PySparkException, match="were trimmed from the log"):
        reading(spark, client, columns="id").count()
    assert reading(spark, client, columns="id", failOnDataLoss="false").count() == 1_500
    # A plan that was made before the trim is read as far as it is still there
    cuts = f"0,1000,{client.newest()}"
    assert reading(spark, client, columns="id", cuts=cuts, failOnDataLoss="false").count() == 1_500
    with pytest.raises(PySparkException, match="were trimmed from the log"):
        reading(spark, client, columns="id", cuts=cuts).count()


def test_a_checkpoint_ahead_of_the_log_is_told(client: PipelineClient) -> None:
    options = {"url": client.url, "token": client.token, "consumer": "ahead", "wait": "0"}
    reader = LogStreamReader(options, _parse_datatype_string(PenstockSource(options).schema()))
    ahead = client.newest() + 10_000

    with pytest.raises(PositionBeyondLog, match="the log ends at"):
        reader.latestOffset(offset_of(ahead), ReadAllAvailable())
