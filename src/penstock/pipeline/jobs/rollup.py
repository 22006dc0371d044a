"""`rollup`: `events`, `ledger` → `rollup_hourly`, sums of hours, and `activity`, who was last heard of when.

Both have one row for each key. A turn adds its sums to those of the same hours, whose files are written again
(`pipeline/merging.py`). Percentiles cannot be added; counts for each class of latency can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.commit import Intent, TableChange, Turn, watermark
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.jobs.ledger import events_between, plan_from_lake, without_repeats
from penstock.pipeline.ledger_batches import BATCH
from penstock.pipeline.merging import MergedTable, merge_into
from penstock.pipeline.writing import by_hour

OPTIONS: Mapping[str, str] = {}

TURN_IDS: Final = 5_000_000
_KEYS: Final = ("hour", "stream", "door", "state", "latency_ms")
_WHO: Final = ("door", "recipient")


# ── transforms ─────────────────────────────────────────────────────────────────────────────────


def accepted(events: DataFrame) -> DataFrame:
    """A row for each entry that was published, to be added up. Streams of the system do not count."""
    published = events.where(F.col("index").isNotNull() & ~F.col("stream").startswith("/_"))
    return published.select(
        F.date_trunc("hour", "time").alias("hour"),
        "stream",
        F.lit("").alias("door"),
        F.lit("accepted").alias("state"),
        F.lit(None).cast("bigint").alias("latency_ms"),
        F.lit(1).cast("bigint").alias("count"),
        F.coalesce(F.length("body"), F.lit(0)).cast("bigint").alias("bytes"),
    )


def delivered(ledger: DataFrame, entries: DataFrame) -> DataFrame:
    """A row for each record of the ledger, to be added up.

    *entries* (id, index, time) are those that records begin or end with: the entries of an interval are counted
    by the indexes of its ends, and the latency is that of its last. A position is one record, of no latency.
    """
    records = without_repeats(ledger).where(F.col("state") != BATCH)
    begins = entries.select(F.col("id").alias("first"), F.col("index").alias("begin"))
    ends = entries.select(F.col("id").alias("last"), F.col("index").alias("end"), F.col("time").alias("published"))
    joined = records.join(begins, "first", "left").join(ends, "last", "left")
    latency = F.when(F.col("first") > 0, (F.unix_micros("time") - F.unix_micros("published")) / 1000)
    return joined.select(
        F.date_trunc("hour", "time").alias("hour"),
        "stream",
        "door",
        "state",
        _class(latency).alias("latency_ms"),
        F.coalesce(F.col("end") - F.col("begin") + 1, F.lit(1)).cast("bigint").alias("count"),
        F.lit(0).cast("bigint").alias("bytes"),
    )


def _class(latency_ms: Column) -> Column:
    """The least power of two that a latency does not exceed, 1 at least."""
    at_least = F.greatest(latency_ms, F.lit(1.0))
    return F.when(latency_ms.isNotNull(), F.pow(F.lit(2.0), F.ceil(F.log2(at_least))).cast("bigint"))


def add_up(rows: DataFrame) -> DataFrame:
    """Rows of `rollup_hourly` with the same keys → one."""
    sums = [F.sum(name).alias(name) for name in ("count", "bytes")]
    return rows.groupBy(*_KEYS).agg(*sums)


def heard_of(ledger: DataFrame) -> DataFrame:
    """When each recipient was heard of."""
    records = without_repeats(ledger).where(F.col("state") != BATCH)
    one = F.lit(1).cast("bigint").alias("records")
    times = (F.col("time").alias("first_time"), F.col("time").alias("last_time"))
    return merge_activity(records.select("door", "recipient", *times, one))


def merge_activity(rows: DataFrame) -> DataFrame:
    """Rows of `activity` of the same recipient → one."""
    grouped = rows.groupBy(*_WHO)
    times = (F.min("first_time").alias("first_time"), F.max("last_time").alias("last_time"))
    return grouped.agg(*times, F.sum("records").alias("records"))


# ── the job ────────────────────────────────────────────────────────────────────────────────────

ROLLUP: Final = MergedTable("rollup_hourly", _KEYS, ("hour",), add_up, _KEYS, by_hour)
ACTIVITY: Final = MergedTable("activity", _WHO, _WHO, merge_activity, _WHO)


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Sum up everything that is archived and decoded."""
    ready, files = min(watermark(place.client, "events"), watermark(place.client, "ledger")), 0
    for turn, intent in place.turns(
        "rollup", ready, lambda after: plan_from_lake(place, after, min(ready, after + TURN_IDS))
    ):
        changes, memory = changes_of(place, turn, intent)
        turn.publish(changes, memory)
        files += sum(len(change.added) for change in changes)
    return JobOutcome(f"rollup: {files:,} files up to id {ready:,}", {"files": files, "upto": ready})


def changes_of(place: Workplace, turn: Turn, intent: Intent) -> tuple[list[TableChange], Mapping[str, Any]]:
    """What changes in the tables, and what the record is to remember: as before."""
    return list(_merges(place, turn, intent)) if intent.slices else [], turn.memory


def _merges(place: Workplace, turn: Turn, intent: Intent) -> Iterator[TableChange]:
    published = accepted(events_between(place, intent.after, intent.upto, "stream", "index", "time", "body"))
    found = [one for one in place.files("ledger") if one.file.overlaps(intent.after, intent.upto)]
    records = sum(one.rows for one in found)
    rows = records + intent.upto - intent.after
    if not found:
        yield merge_into(place, turn, ROLLUP, add_up(published), intent, rows)
        return
    place.lake.check(found)
    inside = (F.col("entry") > intent.after) & (F.col("entry") <= intent.upto)
    ledger = place.read("ledger", found).where(inside)
    entries = _entries_of(place, ledger, intent.upto)
    yield merge_into(place, turn, ROLLUP, add_up(published.unionByName(delivered(ledger, entries))), intent, rows)
    yield merge_into(place, turn, ACTIVITY, heard_of(ledger), intent, records)


def _entries_of(place: Workplace, ledger: DataFrame, upto: int) -> DataFrame:
    """The entries that records begin and end with, from those files of `events` that have any of them.

    A late acknowledgement may name an old entry: the files in between are not read.
    """
    spoken = ledger.where(F.col("first") > 0)
    ids = spoken.select(F.col("first").alias("id")).union(spoken.select("last")).where(F.col("id") <= upto)
    files = place.files("events")
    wanted = [files[number] for number in sorted(numbers_of(ids, [one.file.hi for one in files]))]
    place.lake.check(wanted)
    return place.read("events", wanted, "id", "index", "time")


def numbers_of(ids: DataFrame, ends: list[int]) -> set[int]:
    """The numbers of the files that have *ids*. *ends* are the last ids of all files, in order.

    The ids stay in Spark's workers; only the numbers are collected.
    """

    def found(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy

        for piece in pieces:
            numbers = numpy.unique(numpy.searchsorted(ends, piece.column(0).to_numpy(zero_copy_only=False)))
            yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["number"])

    rows = ids.mapInArrow(found, "number BIGINT").distinct().collect()
    return {row.number for row in rows if row.number < len(ends)}
