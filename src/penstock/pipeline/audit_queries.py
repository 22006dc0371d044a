"""The questions of an audit, as transforms: frames in, frames of what was found out.

Checks over the whole log look at the sums over its files (`file_sums.py`), not at the events themselves.
Which verdict a finding gets is decided in `audit_verdicts.py`; what each app and device got, in `audit_readers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.ledger_rows import BATCH
from penstock.pipeline.typed_rows import RowMaker
from penstock.wire.ledger import FINAL
from penstock.wire.typed_tables import TypedTable

HEADS: Final = "stream STRING, next_index BIGINT, chunk BIGINT, offset BIGINT, last_id BIGINT"
MAILBOXES: Final = "recipient STRING, month STRING, next BIGINT, pending ARRAY<BIGINT>, expired BIGINT"

FOLLOWING: Final = "msgstream"
"""The door whose sessions follow streams. Its mailboxes are named with it (`msgstream/alice`), its recipients not."""


# ── events ─────────────────────────────────────────────────────────────────────────────────────


def holes(summary: DataFrame, begin: int = 0) -> DataFrame:
    """Where a stream goes on later than it should: (stream, after, before, from_index, to_index, chunk, begin, end).

    Either indexes are missing (`from_index` to `to_index`), or lines are (bytes `begin` to `end` of the chunk). With
    *begin*, the id after which the lake begins, each stream may begin at any index.
    """
    order = Window.partitionBy("stream").orderBy("first_id")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    told = summary.withColumns(
        {
            "expected": F.coalesce(F.max("last_index").over(before) + 1, F.col("first_index") if begin else F.lit(0)),
            "after": F.coalesce(F.max("last_id").over(before), F.lit(0)),
            "due": F.when(F.lag("chunk").over(order) == F.col("chunk"), F.lag("end").over(order))
            .when(F.lag("chunk").over(order).isNull() & F.lit(begin > 0), F.col("begin"))
            .otherwise(F.lit(0)),
        }
    )
    late = F.col("first_index") > F.col("expected")
    inside = F.col("last_index") - F.col("first_index") + 1 > F.col("indexes")
    lines = F.col("begin").isNotNull() & (
        (F.col("begin") != F.col("due")) | (F.col("end") - F.col("begin") != F.col("bytes"))
    )
    return told.where(late | inside | lines).select(
        "stream", "file", "after", F.col("last_id").alias("before"),
        F.when(late, F.col("expected")).when(inside, F.col("first_index")).alias("from_index"),
        F.when(late, F.col("first_index") - 1).when(inside, F.col("last_index")).alias("to_index"),
        "chunk", F.col("due").alias("begin"), "end",
    )  # fmt: skip


def doubles(summary: DataFrame) -> DataFrame:
    """Files that hold an id twice."""
    twice = summary.groupBy("file").agg(F.sum(F.col("rows") - F.col("ids")).alias("repeats"))
    return twice.where(F.col("repeats") > 0)


def cut_ends(summary: DataFrame, heads: DataFrame, begin: int = 0) -> DataFrame:
    """Streams that end in the lake before the end that their heads give; `reached_id` is null if one is not there.

    Streams whose last entry is not above *begin*, the id after which the lake begins, are not expected in it.
    """
    ends = summary.groupBy("stream").agg(
        (F.max("last_index") + 1).alias("reached"),
        F.max(F.struct("chunk", "end")).alias("place"),
        F.max("last_id").alias("reached_id"),
    )
    joined = heads.join(ends, "stream", "left").where(F.col("last_id") > begin)
    short = F.coalesce(F.col("reached"), F.lit(0)) < F.col("next_index")
    place = F.struct(F.col("chunk").alias("chunk"), F.col("offset").alias("end"))
    behind = F.coalesce(F.col("reached_id"), F.lit(0)) < F.col("last_id")
    return joined.where(short | behind | (F.col("place") < place)).select(
        "stream", "next_index", "last_id", "reached", "reached_id"
    )


# ── the ledger ─────────────────────────────────────────────────────────────────────────────────


def batches_in_events(events: DataFrame) -> DataFrame:
    """The batches of the ledger as the log has them: (node, epoch, sequence, entry, time)."""
    said = events.where(F.col("stream") == "/_ledger").where(F.col("index").isNotNull())

    def attribute(name: str) -> Column:
        return F.get_json_object("attributes", f"$.{name}")

    return said.select(
        attribute("node").alias("node"),
        attribute("epoch").try_cast("bigint").alias("epoch"),
        attribute("sequence").try_cast("bigint").alias("sequence"),
        F.col("id").alias("entry"),
        "time",
    )


def lost_batches(told: DataFrame, ledger: DataFrame, unreadable: DataFrame) -> DataFrame:
    """Batches that must be there and are not: (node, epoch, first, last, table).

    The sequences of an epoch begin at 0 and have no gap. Every batch in the log is in the table `ledger`, or its entry
    is in `unreadable`. The sequence that an unreadable entry gives may fill a gap, but never makes one.
    """
    believed = told.join(unreadable, "entry", "left_anti")
    kept = ledger.where(F.col("state") == BATCH).select("node", "epoch", "sequence").distinct()
    order = Window.partitionBy("node", "epoch").orderBy("sequence")
    known = believed.select("node", "epoch", "sequence").union(kept).distinct().withColumn("sure", F.lit(True))
    guessed = told.join(unreadable, "entry", "left_semi").select("node", "epoch", "sequence", F.lit(False))
    every = known.union(guessed).where(F.col("sequence").isNotNull())
    before = F.coalesce(F.lag("sequence").over(order), F.lit(-1))
    gaps = every.withColumn("first", before + 1).where(F.col("sure") & (F.col("sequence") > F.col("first")))
    there = ledger.where(F.col("state") == BATCH).select("entry")
    unsaid = believed.join(there, "entry", "left_anti").join(kept, ["node", "epoch", "sequence"], "left_anti")
    in_log = gaps.select(
        "node", "epoch", "first", (F.col("sequence") - 1).alias("last"), F.lit("events").alias("table")
    )
    in_lake = unsaid.select(
        "node",
        "epoch",
        F.col("sequence").alias("first"),
        F.col("sequence").alias("last"),
        F.lit("ledger").alias("table"),
    )
    return in_log.union(in_lake)


def epochs(told: DataFrame, ledger: DataFrame) -> DataFrame:
    """Each epoch of a node: (node, epoch, began, ended, closed, newest, lost, next_began).

    Times are microseconds since 1970: Spark would turn a timestamp into the local time of the driver's process.
    """
    at = told.select("entry", F.unix_micros("time").alias("at"))
    batches = ledger.where(F.col("state") == BATCH).join(at, "entry")
    found = batches.groupBy("node", "epoch").agg(
        F.min("at").alias("began"),
        F.max("at").alias("ended"),
        F.max(F.col("mark") == "close").alias("closed"),
        F.sum("lost").alias("lost"),
        F.count(F.lit(1)).alias("batches"),
    )
    of_node = Window.partitionBy("node").orderBy("epoch")
    return found.withColumn("next_began", F.lead("began").over(of_node))


def entries_during(events: DataFrame, intervals: DataFrame) -> DataFrame:
    """How many entries of users each interval (node, epoch, ended, next_began) has: (node, epoch, entries).

    One pass over *events* (stream, index, time), however many intervals there are. Those without an entry are left out.
    """
    own = events.where(F.col("index").isNotNull() & ~F.col("stream").startswith("/_"))
    inside = F.col("at").between(F.col("ended"), F.col("next_began"))
    found = own.select(F.unix_micros("time").alias("at")).join(F.broadcast(intervals), inside)
    return found.groupBy("node", "epoch").agg(F.count(F.lit(1)).alias("entries"))


# ── conservation ───────────────────────────────────────────────────────────────────────────────


def unclosed(mailboxes: DataFrame, ledger: DataFrame, entries: DataFrame) -> DataFrame:
    """Items that are neither pending nor closed: (recipient, month, number, accepted), in microseconds since 1970.

    Of each recipient, `expired` items wait for the sweep that closes them; as many, the newest, are left out. The
    message stream makes items of entries that a session follows, and records their ends as those of entries (*entries*
    has id and index): a recipient may have as many open items as it has closed entries.
    """
    filled = mailboxes.where(F.col("next") > 1)
    numbers = filled.select(
        "recipient", "month", "pending", "expired", F.explode(F.sequence(F.lit(1), F.col("next") - 1)).alias("number")
    )
    due = numbers.where(~F.array_contains("pending", F.col("number")))
    named = ledger.withColumn("recipient", F.regexp_replace("recipient", f"^{FOLLOWING}/", ""))
    items = named.where(F.col("month") != "").select("recipient", "month", "number", "state", "time")
    closed = items.where(F.col("state").isin(*FINAL)).select("recipient", "month", "number").distinct()
    seen = items.groupBy("recipient", "month", "number").agg(F.unix_micros(F.min("time")).alias("accepted"))
    open_items = due.join(closed, ["recipient", "month", "number"], "left_anti")
    newest = Window.partitionBy("recipient", "month").orderBy(F.col("number").desc())
    counted = open_items.withColumn("rank", F.row_number().over(newest)).where(F.col("rank") > F.col("expired"))
    in_all = counted.withColumn("open", F.count(F.lit(1)).over(Window.partitionBy("recipient")))
    excused = in_all.join(_closed_entries(named, entries), "recipient", "left")
    left = excused.where(F.col("open") > F.coalesce("entries", F.lit(0)))
    return left.join(seen, ["recipient", "month", "number"], "left").select("recipient", "month", "number", "accepted")


def _closed_entries(ledger: DataFrame, entries: DataFrame) -> DataFrame:
    """How many followed entries of each recipient are closed: (recipient, entries)."""
    ends = (F.col("door") == FOLLOWING) & (F.col("first") > 0) & F.col("state").isin(*FINAL)
    spans = ledger.where(ends).select("recipient", "stream", "first", "last").distinct()
    begins = entries.select(F.col("id").alias("first"), F.col("index").alias("begin"))
    stops = entries.select(F.col("id").alias("last"), F.col("index").alias("stop"))
    counted = spans.join(begins, "first").join(stops, "last")
    return counted.groupBy("recipient").agg(F.sum(F.col("stop") - F.col("begin") + 1).alias("entries"))


def without_repeats(ledger: DataFrame) -> DataFrame:
    """The records of each batch once. A node that got no answer appends a batch again, under the same number."""
    batches = ledger.where(F.col("state") == BATCH).groupBy("node", "epoch", "sequence")
    first = batches.agg(F.min("entry").alias("entry")).select("entry")
    return ledger.join(first, "entry", "left_semi")  # as many as were ever written: no driver has room for all


def positions(ledger: DataFrame, events: DataFrame) -> DataFrame:
    """How far each app of a pusher has acknowledged each stream, and the entries that wait: one row for each."""
    acked = ledger.where((F.col("door") == "eventhorizon") & (F.col("state") == "acked") & (F.col("first") > 0))
    reached = acked.groupBy("recipient", "stream").agg(F.min("first").alias("first"), F.max("last").alias("position"))
    entries = events.where(F.col("index").isNotNull()).select("stream", "id")
    waiting = (
        entries.join(reached, "stream").where(F.col("id") > F.col("position")).groupBy("recipient", "stream").count()
    )
    counted = reached.join(waiting, ["recipient", "stream"], "left")
    return counted.select("recipient", "stream", "position", F.coalesce("count", F.lit(0)).alias("pending"))


def of_typed_table(events: DataFrame, table: TypedTable) -> DataFrame:
    """The ids of the entries (id, stream, kind) that a typed table has a row for, or names as unreadable."""

    def ids(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        maker = RowMaker(table)
        for piece in pieces:
            yield piece.filter(maker.is_wanted(piece)).select(["id"])

    return events.mapInArrow(ids, "id BIGINT")
