"""The jobs' transforms, on frames of a few rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs import replay
from penstock.pipeline.jobs.archive import transform as archive
from penstock.pipeline.lake import EVENTS

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_the_archive_keeps_every_column_in_its_order(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], EVENTS)

    assert archive(frame.select(*reversed(frame.columns))).schema == frame.schema


def test_a_replay_leaves_out_what_had_expired_when_it_was_begun(spark: SparkSession) -> None:
    expiries = [None, NOON + timedelta(seconds=1), NOON, NOON - timedelta(days=1)]
    rows = [
        (number, "/a", number, 0, 0, 0, "data", None, NOON, expiry, None, bytearray(b"x"), 1)
        for number, expiry in enumerate(expiries)
    ]

    assert rows_of(replay.transform(spark.createDataFrame(rows, EVENTS), ["/a"], NOON), "id") == [(0,), (1,)]
