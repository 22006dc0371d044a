"""The jobs' transforms, on frames of a few rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.core.ledger import Header, Recipient, _Columns, _encode, _Row, decode
from penstock.pipeline.jobs import ledger, replay, rollup
from penstock.pipeline.jobs.archive import transform as archive
from penstock.pipeline.lake import EVENTS
from penstock.wire.table_columns import TABLES

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def batch(sequence: int, *rows: tuple[str, str, int, int, str], mark: str = "", items: Any = ()) -> bytes:
    """A ledger batch as a node writes it, of (state, stream, first, last, recipient)."""
    made = []
    for number, (state, stream, first, last, name) in enumerate(rows):
        row = _Row(NOON_MS + number, state, "", stream, first, last)
        row.who = [Recipient("sps", name)]
        made.append(row)
    return _encode(Header("n1", 1, sequence, mark, items=list(items)), _Columns(made))[0]


def events(spark: SparkSession, *bodies: bytes, stream: str = "/_ledger") -> DataFrame:
    rows = [
        (100 + number, stream, number, 0, 0, 0, "data", None, NOON, None, None, bytearray(body), 1)
        for number, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, EVENTS)


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_the_archive_keeps_every_column_in_its_order(spark: SparkSession) -> None:
    frame = events(spark, b"x")

    assert archive(frame.select(*reversed(frame.columns))).schema == frame.schema


def test_a_replay_leaves_out_what_had_expired_when_it_was_begun(spark: SparkSession) -> None:
    expiries = [None, NOON + timedelta(seconds=1), NOON, NOON - timedelta(days=1)]
    rows = [
        (number, "/a", number, 0, 0, 0, "data", None, NOON, expiry, None, bytearray(b"x"), 1)
        for number, expiry in enumerate(expiries)
    ]

    assert rows_of(replay.transform(spark.createDataFrame(rows, EVENTS), ["/a"], NOON), "id") == [(0,), (1,)]


def test_batches_of_the_ledger_become_rows(spark: SparkSession) -> None:
    item = (NOON_MS, "accepted", "", "webpush", "ua-1", "message-7", "2026_11", 3, NOON_MS + 1000)
    bodies = [
        batch(0, mark="open"),
        batch(1, ("sent", "/a", 5, 9, "alice"), ("acked", "/a", 5, 9, "alice"), items=[item]),
    ]

    decoded = ledger.transform(events(spark, *bodies))

    assert rows_of(decoded, "entry", "state", "recipient", "first", "last", "key", "number", "mark") == [
        (100, "batch", "", 0, 0, "", 0, "open"),
        (101, "accepted", "ua-1", 0, 0, "message-7", 3, ""),
        (101, "acked", "alice", 5, 9, "", 0, ""),
        (101, "batch", "", 0, 0, "", 0, ""),
        (101, "sent", "alice", 5, 9, "", 0, ""),
    ]
    assert decoded.where("key = 'message-7'").first().expires_at is not None
    assert len(decode(bodies[1])[1]) == 3


def test_other_streams_and_meta_entries_are_passed_over(spark: SparkSession) -> None:
    other = events(spark, b"{}", stream="/orders")
    created = events(spark, b"{}").replace("data", "meta")

    assert ledger.transform(other.union(created)).count() == 0


def test_a_batch_that_was_appended_twice_counts_once(spark: SparkSession) -> None:
    same = batch(4, ("sent", "/a", 1, 1, "alice"))

    folded = ledger.fold(ledger.transform(events(spark, same, same)))

    assert rows_of(folded, "recipient", "attempts") == [("alice", 1)]


def test_the_state_that_counts_is_the_one_of_the_highest_rank(spark: SparkSession) -> None:
    states = [("sent", "/a", 1, 1, "a"), ("retried", "/a", 1, 1, "a"), ("acked", "/a", 1, 1, "a")]
    states += [("sent", "/a", 1, 1, "b"), ("dropped", "/a", 1, 1, "b"), ("retried", "/a", 2, 2, "b")]

    folded = ledger.fold(ledger.transform(events(spark, batch(0, *states))))

    assert folded.columns == [one.name for one in TABLES["deliveries"]]
    assert rows_of(folded, "recipient", "first", "state", "attempts") == [
        ("a", 1, "acked", 2),
        ("b", 1, "dropped", 1),
        ("b", 2, "retried", 1),
    ]


def test_folding_in_steps_gives_what_folding_at_once_gives(spark: SparkSession) -> None:
    one, two = batch(0, ("sent", "/a", 1, 1, "a"), ("sent", "/a", 2, 2, "a")), batch(1, ("acked", "/a", 1, 1, "a"))
    whole = ledger.transform(events(spark, one, two))

    in_steps = ledger.fold(whole.where("sequence = 0")).union(ledger.fold(whole.where("sequence = 1")))

    assert sorted(ledger.fold_deliveries(in_steps).collect()) == sorted(ledger.fold(whole).collect())


def test_sums_count_the_entries_of_an_interval_and_the_latency_of_its_last(spark: SparkSession) -> None:
    decoded = ledger.transform(events(spark, batch(0, ("sent", "/a", 5, 9, "alice"))))
    published = [(5, 10, NOON - timedelta(seconds=9)), (9, 12, NOON - timedelta(milliseconds=3))]
    entries = spark.createDataFrame(published, "id BIGINT, index BIGINT, time TIMESTAMP")

    row = rollup.add_up(rollup.delivered(decoded, entries)).first()

    assert (row.stream, row.door, row.state, row["count"]) == ("/a", "sps", "sent", 3)
    assert row.latency_ms == 4


def test_an_entry_that_is_not_known_counts_without_a_latency(spark: SparkSession) -> None:
    decoded = ledger.transform(events(spark, batch(0, ("sent", "/a", 5, 9, "alice"))))

    row = rollup.delivered(decoded, spark.createDataFrame([], "id BIGINT, index BIGINT, time TIMESTAMP")).first()

    assert row["count"] == 1
    assert row.latency_ms is None


def test_what_was_published_is_summed_up_without_the_streams_of_the_system(spark: SparkSession) -> None:
    both = events(spark, b"12345", b"678", stream="/a").union(events(spark, batch(0)))

    assert rows_of(rollup.add_up(rollup.accepted(both)), "stream", "state", "count", "bytes") == [
        ("/a", "accepted", 2, 8)
    ]


def test_recipients_are_remembered_by_their_first_and_last_sign(spark: SparkSession) -> None:
    decoded = ledger.transform(events(spark, batch(0, ("sent", "/a", 1, 1, "a"), ("sent", "/a", 2, 2, "a"))))

    heard = rollup.heard_of(decoded)

    assert heard.columns == [one.name for one in TABLES["activity"]]
    (row,) = heard.collect()
    assert (row.recipient, row.records, row.last_time - row.first_time) == ("a", 2, timedelta(milliseconds=1))
    assert decoded.columns == [one.name for one in TABLES["ledger"]]
