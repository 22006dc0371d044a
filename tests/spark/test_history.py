"""The option `history`: log and lake read as one, and nobody sees where one ends and the other begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_nats, start_nodes, start_server, wait_until
from tests.api.lake_rig import archive, trim
from tests.pipeline.by_hand import archive_turn
from tests.spark.filling import publish
from tests.spark.recording import recording
from tests.spark.test_source import lines, reading, streaming, with_pushdown

ROWS = 3_000  # of each of two streams


@dataclass(frozen=True, slots=True)
class Shop:
    """A server with orders in its log, beside a lake."""

    server: RunningServer
    client: PipelineClient
    lake: str

    def archive_and_trim(self, upto: int, kept: int = 0) -> None:
        """Put the first entries into the lake, and let all but the last *kept* of these go from the log."""
        assert archive(self.server, self.lake, upto) == upto
        assert trim(self.server, upto=upto - kept, apply=True).status == 200


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.long)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    lake = str(tmp_path / "lake") if request.param == "folder" else f"s3://lake/{tmp_path.name}"
    if request.param == "s3":
        request.getfixturevalue("s3")
    with start_server(tmp_path / "data", lake_url=lake) as server:
        client = PipelineClient(server.url, server.admin_token)
        for stream in ("/orders/a", "/orders/b"):
            publish(client, stream, lines(ROWS, stream.encode()))
        yield Shop(server, client, lake)


def rows(frame: DataFrame) -> list[Any]:
    """All rows as they come: slices follow each other in order of id."""
    return frame.collect()


def test_a_read_over_the_seam_is_one_of_a_log_that_was_never_trimmed(spark: SparkSession, shop: Shop) -> None:
    # Given what the whole log says, and then a part of it in the lake alone, another in both, the rest in the log
    client = shop.client
    whole = reading(spark, client, streams="/orders/*")
    schema, expected = whole.schema, rows(whole)
    seam = client.plan(0, client.newest(), parts=2)["slices"][0]["hi"]
    shop.archive_and_trim(seam + 500, kept=500)
    with pytest.raises(PySparkException, match=r"were trimmed from the log(.|\n)*option history"):
        reading(spark, client, streams="/orders/*").count()

    # Then a read with history has the same rows, in columns of the same types
    read = reading(spark, client, streams="/orders/*", history="true")
    assert (read.schema, rows(read)) == (schema, expected)
    # And filters are pushed down to both, as they are to the log
    ids, middle = F.col("id"), expected[len(expected) // 2].id
    around = (ids > middle - 700) & (ids <= middle + 700)
    since = datetime.now(UTC) - timedelta(days=1)
    filters: dict[str, Column] = {
        "ids": around,
        "streams": around & (F.col("stream") == "/orders/b"),
        "times": around & (F.col("time") > F.lit(since)),
    }
    pushing = with_pushdown(spark, on=True)
    for wanted in filters.values():
        with recording(shop.server) as server:
            some = reading(pushing, PipelineClient(server.url, client.token), streams="/orders/*", history="true")
            assert rows(some.where(wanted)) == rows(spark.createDataFrame(expected, schema).where(wanted))
        assert server.ids() <= 1_400
    # And so are times, as options
    assert reading(spark, client, history="true", since=since.isoformat(), streams="/orders/*").count() == len(expected)
    assert reading(spark, client, history="true", until=since.isoformat()).count() == 0

    # And the same check finds a plan that leaves out the last id before the seam, and one that has it twice
    for before, after in ((b'"hi":%d,', seam - 1), (b'"lo":%d,', seam - 1)):

        def wrong(data: bytes, form: bytes = before, id: int = after) -> bytes:
            return data.replace(form % seam, form % id)

        with recording(shop.server, wrong) as server:
            there = PipelineClient(server.url, client.token)
            assert rows(reading(spark, there, streams="/orders/*", history="true")) != expected


def test_the_seam_is_as_invisible_on_a_node_of_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    with ExitStack() as stack:
        nats, lake = stack.enter_context(start_nats(tmp_path / "nats", sync="2m")), open_lake(tmp_path / "lake")
        (node,) = start_nodes(stack, tmp_path, nats.url, count=1, log_replicas=1, lake_url=lake.place)
        client = PipelineClient(node.url, node.admin_token)
        bind(client, lake)
        # Given what the whole log says, and then its beginning in the lake alone, a part in both, and the rest in it
        publish(client, "/orders/a", lines(1_200))
        archived = archive_turn(client, lake)
        publish(client, "/orders/b", lines(800))
        whole = reading(spark, client, streams="/orders/*")
        schema, expected = whole.schema, rows(whole)
        seam = client.plan(0, client.newest(), parts=2)["slices"][0]["hi"]
        assert 0 < seam < archived
        assert trim(node, upto=seam, apply=True).status == 200
        wait_until(lambda: client.call("GET", "/v1/pipeline")["trimmed"] == seam)
        with pytest.raises(PySparkException, match="were trimmed from the log"):
            reading(spark, client, streams="/orders/*").count()

        # Then a read with history has the same rows, whether a task begins at the seam or goes over it
        for partitions in (2, 3):
            read = reading(spark, client, streams="/orders/*", history="true", partitions=partitions)
            assert (read.schema, rows(read)) == (schema, expected)

        # And the same check finds a plan that leaves out the last id before the seam
        def wrong(data: bytes) -> bytes:
            return data.replace(b'"hi":%d,' % seam, b'"hi":%d,' % (seam - 1))

        with recording(node, wrong) as server:
            there = PipelineClient(server.url, client.token)
            assert rows(reading(spark, there, streams="/orders/*", history="true", partitions=2)) != expected


@pytest.mark.parametrize("shop", ["s3"], indirect=True)
def test_a_stream_does_not_notice_that_the_log_is_trimmed_under_it(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    client, newest, read = shop.client, shop.client.newest(), list[int]()

    def take(batch: DataFrame, number: int) -> None:
        """Keep the ids; after the first batch let most of the log go before the query comes to it."""
        read.extend(row.id for row in batch.select("id").collect())
        if number == 0:
            shop.archive_and_trim(newest - 1_000)

    def run(consumer: str, **options: str) -> None:
        read.clear()
        stream = streaming(spark, client, consumer=consumer, columns="id", maxEventsPerTrigger=900, **options)
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / consumer))
        query.trigger(availableNow=True).start().awaitTermination()

    run("history", history="true")
    assert sorted(read) == list(range(1, newest + 1))
    assert client.call("GET", "/v1/pipeline")["trimmed"] == newest - 1_000
    # And a query that begins now begins with the first entry of all, or with the first of the log
    run("all", history="true")
    assert sorted(read) == list(range(1, client.newest() + 1))
    run("log")
    assert sorted(read) == list(range(newest - 999, client.newest() + 1))
