"""`ledger`: the batches of `/_ledger` in `events` → `ledger`, one row a record, and `deliveries`, folded.

A turn reads what the archive has written, never the server: it costs the server nothing, and it cannot be
overtaken by a trim. A file of `deliveries` is the fold of the file of `ledger` with the same ids. What happened to
one delivery at different times may be in several files; whoever reads folds again, by rank (`fold_deliveries`),
and so does compaction. Nothing is ever too late to be folded in: an acknowledgement may come after 60 days.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.pipeline.commit import Intent, Slice, Staged, Turn, watermark
from penstock.pipeline.jobs import Outcome, Workplace
from penstock.pipeline.staging import stage_one
from penstock.pipeline.tables import EVENTS, LEDGER, RANKS, SCHEMAS, days_between
from penstock.wire.ledger import decode_batch

OPTIONS: Mapping[str, str] = {}

STREAM: Final = "/_ledger"
BATCH: Final = "batch"
"""The state of the row that stands for a batch itself."""

TURN_IDS: Final = 2_000_000
_TIME: Final = pa.timestamp("us", tz="UTC")
_WHAT: Final = ("door", "recipient", "stream", "first", "last", "key", "month", "number")
_ARROW: Final = {"BIGINT": pa.int64(), "STRING": pa.utf8(), "TIMESTAMP": _TIME}
_SCHEMA: Final = pa.schema([(name, _ARROW[kind]) for name, kind in (one.split() for one in LEDGER.split(", "))])


# ── transforms ─────────────────────────────────────────────────────────────────────────────────


def transform(events: DataFrame) -> DataFrame:
    """Entries of `/_ledger` → one row for each batch, and one for each record in it."""
    batches = events.where((F.col("stream") == STREAM) & (F.col("kind") == "data"))
    return batches.select("id", "body").mapInArrow(_decode, LEDGER)


def _decode(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        for id, body in zip(piece.column("id").to_pylist(), piece.column("body").to_pylist(), strict=True):
            rows = _rows(id, body)
            columns = [pa.array(values, field.type) for values, field in zip(rows, _SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _rows(entry: int, body: bytes) -> list[list[Any]]:
    """The columns of one batch."""
    batch, records = decode_batch(body)
    found = list(records)
    rows = 1 + len(found)
    own = [[value] * rows for value in (entry, batch.node, batch.epoch, batch.sequence, batch.mark, batch.lost)]
    names = ("state", "reason", "door", "recipient", "stream", "first", "last", "key", "month", "number")
    first = (BATCH, "", "", "", "", 0, 0, "", "", 0)
    columns = [[value, *(getattr(one, name) for one in found)] for name, value in zip(names, first, strict=True)]
    times = [None, *(one.ms * 1000 for one in found)]
    expiries = [None, *(None if one.expires_ms is None else one.expires_ms * 1000 for one in found)]
    return [*own, times, *columns, expiries]


def without_repeats(ledger: DataFrame) -> DataFrame:
    """The records of each batch once. A node that got no answer appends a batch again, under the same number."""
    batches = ledger.where(F.col("state") == BATCH).groupBy("node", "epoch", "sequence")
    first = batches.agg(F.min("entry").alias("entry")).select("entry")
    return ledger.join(F.broadcast(first), "entry", "left_semi")


def fold(ledger: DataFrame) -> DataFrame:
    """Records → what became of each delivery: one row for each door, recipient and interval or item."""
    records = without_repeats(ledger).where(F.col("state") != BATCH)
    rows = records.select(
        *_WHAT,
        "state",
        "reason",
        F.col("time").alias("first_time"),
        F.col("time").alias("last_time"),
        F.when(F.col("state") == "sent", F.col("time")).alias("sent_time"),
        F.when(F.col("state") == "acked", F.col("time")).alias("acked_time"),
        F.col("state").isin("sent", "retried").cast("bigint").alias("attempts"),
        "expires_at",
        F.col("entry").alias("upto"),
    )
    return fold_deliveries(rows)


def fold_deliveries(deliveries: DataFrame) -> DataFrame:
    """Rows of `deliveries` that speak of the same thing → one, in the state that counts."""
    best = F.min(F.struct(_rank(F.col("state")), -F.unix_micros("last_time"), "state", "reason"))
    folded = deliveries.groupBy(*_WHAT).agg(
        best.alias("best"),
        F.min("first_time").alias("first_time"),
        F.max("last_time").alias("last_time"),
        F.min("sent_time").alias("sent_time"),
        F.min("acked_time").alias("acked_time"),
        F.sum("attempts").alias("attempts"),
        F.max("expires_at").alias("expires_at"),
        F.max("upto").alias("upto"),
    )
    named = folded.withColumn("state", F.col("best.state")).withColumn("reason", F.col("best.reason"))
    return named.select(*(one.split()[0] for one in SCHEMAS["deliveries"].split(", ")))


def _rank(state: Column) -> Column:
    ranked = F.lit(len(RANKS))
    for number, name in reversed(list(enumerate(RANKS))):
        ranked = F.when(state == name, number).otherwise(ranked)
    return ranked.alias("rank")


# ── the job ────────────────────────────────────────────────────────────────────────────────────


def run(place: Workplace, options: Mapping[str, str]) -> Outcome:
    """Decode and fold everything that is archived."""
    archived, records = watermark(place.client, "events"), 0
    while _is_behind(place, archived):
        turn = Turn(place.client, place.lake, "ledger", place.faults)
        if turn.intent is None:
            turn.intend(plan_from_lake(place, turn.done, min(archived, turn.done + TURN_IDS)))
        records += _perform(place, turn)
    return Outcome(f"ledger: {records:,} files up to id {archived:,}", {"files": records, "upto": archived})


def _is_behind(place: Workplace, archived: int) -> bool:
    record = place.client.get("lake/ledger").value
    return record.get("intent") is not None or record.get("done", 0) < archived


def plan_from_lake(place: Workplace, after: int, upto: int) -> Intent:
    """The ids in (after, upto], cut where `events` has a new day."""
    cuts = days_between(place.lake.files("events"), after, upto)
    return Intent(after, upto, tuple(Slice(lo, hi, day) for lo, hi, day in cuts))


def events_between(place: Workplace, after: int, upto: int, *columns: str) -> DataFrame:
    """The rows of `events` with ids in (after, upto], from those files only whose names say so."""
    found = [file for file in place.lake.files("events") if file.overlaps(after, upto)]
    paths = [str(place.lake.path(file)) for file in found]
    frame = place.spark.read.schema(EVENTS).parquet(*paths) if paths else place.spark.createDataFrame([], EVENTS)
    return frame.where((F.col("id") > after) & (F.col("id") <= upto)).select(*columns)


def _perform(place: Workplace, turn: Turn) -> int:
    intent = turn.intent
    if intent is None:
        raise ValueError("a turn without an intent")
    staged = [file for one in intent.slices for file in _stage(place, turn, one)]
    turn.publish(staged)
    return len(staged)


def _stage(place: Workplace, turn: Turn, one: Slice) -> list[Staged]:
    events = events_between(place, one.lo, one.hi, "id", "stream", "kind", "body")
    folder = turn.staging / str(one.lo)
    ledger = stage_one(transform(events), folder / "ledger", "ledger", one)
    if not ledger:
        return []
    decoded = place.spark.read.schema(LEDGER).parquet(str(ledger[0].path))
    folded = fold(decoded).coalesce(1).sortWithinPartitions("first", "key", "recipient")
    return ledger + stage_one(folded, folder / "deliveries", "deliveries", one)
