"""Entries that a reader was not given, although it was given later ones: transforms for the audit.

A reader of the log has no mailbox: it says itself where it goes on. An app answers a push with its own position; a
device of sps comes back with a position, or without one. So an entry between two that a reader got need not be lost.
But there is no record of it, and the audit names it. Where a device was away in between, the audit says nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.wire.ledger import FINAL

APP, DEVICE = "eventhorizon", "sps"
"""The doors whose readers are looked at."""

USERS: Final = "/users/"
PRESENCE: Final = "/_presence"
SLACK_SECONDS: Final = 5
"""Clocks of nodes differ, and the presence stream says that a device is away some moments after it went."""

_READER: Final = ("door", "recipient", "stream")
_BEGIN, _POINT, _END = 0, 1, 2


# ── who reads what ─────────────────────────────────────────────────────────────────────────────


def taken(ledger: DataFrame) -> DataFrame:
    """What readers were given of their own streams: (door, recipient, device, stream, first, last, time).

    For an app that is what it acknowledged, for a device of sps what was sent to it of its user's stream.
    """
    user, device = F.split_part("recipient", F.lit("/"), F.lit(1)), F.regexp_extract("recipient", "^[^/]*/(.*)$", 1)
    closed = F.col("state").isin(*FINAL)
    own = (F.col("door") == DEVICE) & (F.col("stream") == F.concat(F.lit(USERS), user))
    given = ((F.col("door") == APP) & closed) | (own & (closed | (F.col("state") == "sent")))
    found = ledger.where((F.col("first") > 0) & given).withColumn("device", device)
    return found.select("door", "recipient", "device", "stream", "first", "last", "time")


def presence(events: DataFrame) -> DataFrame:
    """When devices came and went: (recipient, time). A null recipient stands for all: the server was started."""
    lines = events.where((F.col("stream") == PRESENCE) & (F.col("kind") == "data")).select(
        F.explode(F.split(F.col("body").cast("string"), "\n")).alias("line")
    )
    user, device = F.get_json_object("line", "$.uid"), F.get_json_object("line", "$.hid")
    name = F.when(device == "", user).otherwise(F.concat(user, F.lit("/"), device))
    at = F.get_json_object("line", "$.time").try_cast("double")
    return lines.select(name.alias("recipient"), F.timestamp_seconds(at).alias("time"))


# ── what lies between ──────────────────────────────────────────────────────────────────────────


def skipped(given: DataFrame, events: DataFrame) -> DataFrame:
    """Runs of entries that a reader was not given: (door, recipient, stream, first, last, entries, left, back).

    *left* and *back* are the times of the records before and after them. Entries with an expiry are left out.
    """
    points = _points(given, events)
    of_reader = Window.partitionBy(*_READER).orderBy("id", "order")
    before = of_reader.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    after = of_reader.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    every = _steps(given).unionByName(points)
    told = every.withColumns(
        {
            "open": F.sum("step").over(before),
            "left": F.last(_at(_END, "time"), ignorenulls=True).over(before),
            "behind": F.last(_at(_END, "id"), ignorenulls=True).over(before),
            "back": F.first(_at(_BEGIN, "time"), ignorenulls=True).over(after),
        }
    )
    between = (F.col("order") == _POINT) & (F.col("open") == 0) & F.col("left").isNotNull() & F.col("back").isNotNull()
    runs = told.where(between).groupBy(*_READER, "behind", "left", "back")
    ids = (F.min("id").alias("first"), F.max("id").alias("last"), F.count("id").alias("entries"))
    return runs.agg(*ids).drop("behind")


def without_absence(runs: DataFrame, seen: DataFrame) -> DataFrame:
    """*runs* without those of devices that came or went in between, or whose server was started."""
    known = seen.select(F.col("recipient").alias("who"), F.col("time").alias("at"))
    slack = F.expr(f"INTERVAL {SLACK_SECONDS} SECONDS")
    meanwhile = (F.col("at") >= F.col("left") - slack) & (F.col("at") <= F.col("back") + slack)
    moved = (F.col("door") == DEVICE) & meanwhile
    there = runs.join(known.where("who IS NOT NULL"), (F.col("who") == F.col("recipient")) & moved, "left_anti")
    return there.join(known.where("who IS NULL"), moved, "left_anti")


def _steps(given: DataFrame) -> DataFrame:
    """One row where an interval begins (+1) and one where it ends (-1): their sum is 0 between intervals."""
    begins, ends = ((F.col("first"), _BEGIN, 1), (F.col("last"), _END, -1))
    rows = [
        given.select(*_READER, id.alias("id"), F.lit(order).alias("order"), F.lit(step).alias("step"), "time")
        for id, order, step in (begins, ends)
    ]
    return rows[0].union(rows[1])


def _points(given: DataFrame, events: DataFrame) -> DataFrame:
    """The entries that each reader should have been given: of its streams, unless they are for another device."""
    lasting = F.col("index").isNotNull() & (F.col("kind") == "data") & F.col("expires_at").isNull()
    only = F.get_json_object("attributes", "$.hid").alias("only")
    readers = given.select(*_READER, "device").distinct()
    wanted = events.where(lasting).select("stream", "id", only).join(readers, "stream")
    theirs = F.col("only").isNull() | (F.col("only") == F.col("device")) | (F.col("door") == APP)
    nothing = F.lit(None).cast("timestamp").alias("time")
    return wanted.where(theirs).select(*_READER, "id", F.lit(_POINT).alias("order"), F.lit(0).alias("step"), nothing)


def _at(order: int, column: str) -> Column:
    return F.when(F.col("order") == order, F.col(column))
