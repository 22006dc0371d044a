"""`archive`: the log → `events`. Every stream, in order of id, a file for each slice of a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader

from penstock.iceberg.files import WrittenFile, checked
from penstock.pipeline import register
from penstock.pipeline.client import RecordChanged
from penstock.pipeline.commit import Intent, Slice, TableChange
from penstock.pipeline.jobs import BEGIN, JobOutcome, Workplace
from penstock.pipeline.writing import CopySlice, file_of, write_frame
from penstock.wire.lake_files import parse_location
from penstock.wire.table_columns import NAMES

OPTIONS: Mapping[str, str] = {}

TURN_ROWS: Final = 2_000_000
"""Rows of one turn: some ten seconds of work, which a crash repeats at most."""

TURN_BYTES: Final = 2 * 1024**3
TURN_SLICES: Final = 1_000
"""Slices of one turn: a record holds them. A clock that jumps over midnight and back makes that many."""

FEW_ROWS: Final = 50_000
"""Up to so many rows one task is quicker than two."""

Transform = Callable[[DataFrame], DataFrame]


def transform(frame: DataFrame) -> DataFrame:
    """Rows of the log as rows of `events`: the same, in the table's order of columns."""
    return frame.select(*NAMES)


def run(place: Workplace, options: Mapping[str, str], *, transform: Transform | None = None) -> JobOutcome:
    """Archive everything that was in the log when it began.

    Without a *transform* of the caller's own the tasks copy what they read, which costs a fraction of going through
    frames, and gives the rows that `transform` of this module gives.
    """
    begin(place)
    newest, began, rows = place.client.newest(), -1, 0
    for turn, intent in place.turns("events", newest, lambda after: plan_from_log(place, after, newest)):
        began = intent.after if began < 0 else began
        turn.publish([TableChange("events", _write(place, intent, transform))] if intent.slices else [])
        rows += sum(one.rows for one in intent.slices)
    if began < 0:
        return JobOutcome("archive: nothing new", {"rows": 0})
    return JobOutcome(f"archive: {rows:,} rows after id {began:,}", {"rows": rows, "after": began, "upto": newest})


def begin(place: Workplace) -> None:
    """Let the first archive of a log that was trimmed before begin at the trim point, and keep where that was."""
    client = place.client
    if client.get("lake/events").version or not (trimmed := client.call("GET", "/v1/pipeline")["trimmed"]):
        return
    with suppress(RecordChanged):  # another driver was first
        client.put(BEGIN, {"after": trimmed}, expect=0)
    with suppress(RecordChanged):
        done = client.get(BEGIN).value["after"]
        client.put("lake/events", {"fence": 0, "done": done, "done_ms": 0, "intent": None}, expect=0)


def plan_from_log(place: Workplace, after: int, upto: int) -> Intent:
    """Slices of the log from *after* on, no more than one turn can do."""
    parts = place.spark.sparkContext.defaultParallelism if upto - after > FEW_ROWS else 1
    plan = place.client.plan(after, upto, parts=parts, max_rows=TURN_ROWS, max_bytes=TURN_BYTES)
    slices = tuple(Slice(one["lo"], one["hi"], one["day"], one["rows"]) for one in plan["slices"][:TURN_SLICES])
    return Intent(after, slices[-1].hi if len(plan["slices"]) > TURN_SLICES else plan["upto"], slices)


def _write(place: Workplace, intent: Intent, transform: Transform | None) -> list[WrittenFile]:
    store, files = place.lake.store, [file_of("events", one) for one in intent.slices]
    rows = [one.rows for one in intent.slices]
    if transform is None:
        copies = [CopySlice(place.client, store, file, count) for file, count in zip(files, rows, strict=True)]
        return place.in_tasks(CopySlice.run, copies)
    register(place.spark)
    cuts = ",".join(str(number) for number in (intent.after, *(one.hi for one in intent.slices)))
    reader = place.spark.read.format("penstock").option("url", place.client.url).option("token", place.client.token)
    written = {parse_location(one.location): one for one in write_frame(_cut(reader, cuts, transform), store, files)}
    found = {(file.lo, file.hi): one for file, one in written.items() if file}
    return [checked(file, count, found.get((file.lo, file.hi))) for file, count in zip(files, rows, strict=True)]


def _cut(reader: DataFrameReader, cuts: str, transform: Transform) -> DataFrame:
    """The log as a frame whose partition k is slice k."""
    return transform(reader.option("cuts", cuts).load())
