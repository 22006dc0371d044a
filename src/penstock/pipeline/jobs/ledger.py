"""`ledger`: the batches of `/_ledger` in `events` → `ledger`, one row a record, `deliveries`, folded, and `positions`.

A batch that comes again is left out, in whichever turn it comes (`pipeline/ledger_batches.py`). One that cannot be read
becomes a row of `unreadable`, and the job goes on.

A turn reads what the archive has written, never the server: it costs the server nothing, and it cannot be
overtaken by a trim. `deliveries` has one row for each delivery: what a turn says of one that is there already is folded
into its row, by rank (`fold_deliveries`), and the files that have such rows are written again (`pipeline/merging.py`).
Nothing is ever too late to be folded in: an acknowledgement may come after 60 days.

A position ("has everything up to here") is no delivery: it says something about all that the recipient was sent until
then, whichever file that is in. So positions have a table of their own; whoever reads joins the two (`core/why.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from penstock.iceberg.files import WrittenFile, arrow_schema, read_batches
from penstock.iceberg.store import FileStore
from penstock.pipeline.commit import Intent, Slice, TableChange, Turn, watermark
from penstock.pipeline.erasing import STREAM as ERASED
from penstock.pipeline.erasing import read_request
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.lake import LEDGER, SCHEMAS, days_between
from penstock.pipeline.ledger_batches import (
    BATCH,
    LOOKED_AT,
    UNREADABLE,
    FoundBatches,
    Heads,
    SeenBatches,
    find_in,
    heads_from_rows,
    heads_to_rows,
    look_through,
)
from penstock.pipeline.merging import MergedTable, merge_into
from penstock.pipeline.writing import by_kind, file_of, write_frame
from penstock.wire.ledger import CONFIRMED, RANKS, UNKNOWN_RANK, decode_batch

OPTIONS: Mapping[str, str] = {}

STREAM: Final = "/_ledger"
SYSTEM: Final = (STREAM, ERASED)
"""Streams whose entries something of ours must be able to read."""

TURN_IDS: Final = 2_000_000
REASON_CHARACTERS: Final = 300
"""Of the reason why an entry cannot be read: it may quote the entry."""
_TIME: Final = pa.timestamp("us", tz="UTC")
_WHAT: Final = ("door", "recipient", "stream", "first", "last", "key", "month", "number")
_SAID: Final = ("door", "recipient", "stream", "upto")
_SCHEMA: Final = arrow_schema("ledger")


# ── transforms ─────────────────────────────────────────────────────────────────────────────────


def transform(events: DataFrame) -> DataFrame:
    """Entries of `/_ledger` → one row for each batch, and one for each record in it.

    One that cannot be read, there or in `/_erased`, becomes a row whose state is `unreadable`, with the reason.
    """
    wanted = events.where(F.col("stream").isin(*SYSTEM) & (F.col("kind") == "data"))
    return wanted.select("id", "stream", "body").mapInArrow(_decode, LEDGER)


def _decode(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        for id, stream, body in zip(*(piece.column(name).to_pylist() for name in range(3)), strict=True):
            yield from _decode_one(id, stream, body or b"")


def _decode_one(entry: int, stream: str, body: bytes) -> Iterator[pa.RecordBatch]:
    try:
        if stream == STREAM:
            yield _arrow(_rows(entry, body))
        else:
            read_request(body)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the others are to be read
        yield _arrow(_unreadable_row(entry, stream, len(body), str(error) or type(error).__name__))


def _arrow(rows: list[list[Any]]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(rows, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _unreadable_row(entry: int, stream: str, size: int, reason: str) -> list[list[Any]]:
    said = {"entry": entry, "state": UNREADABLE, "reason": _printable(reason), "stream": stream, "number": size}
    empty = {pa.int64(): 0, pa.utf8(): "", _TIME: None}
    return [[said.get(field.name, empty[field.type])] for field in _SCHEMA]


def _printable(reason: str) -> str:
    """A reason may quote what nobody can encode."""
    return reason[:REASON_CHARACTERS].encode(errors="replace").decode()


def unreadable(decoded: DataFrame) -> DataFrame:
    """What could not be read, as rows of the table `unreadable`."""
    nothing = F.lit(None).cast("string")
    return decoded.where(F.col("state") == UNREADABLE).select(
        "entry", "stream", "reason", F.col("number").alias("bytes"), nothing.alias("typed_table"), nothing.alias("path")
    )


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
    records = without_repeats(ledger).where(~F.col("state").isin(BATCH, CONFIRMED))
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
    best = F.min(F.struct(_rank(), -F.unix_micros("last_time"), "state", "reason"))
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


def positions(ledger: DataFrame) -> DataFrame:
    """Records → how far recipients said that they had come."""
    said = without_repeats(ledger).where(F.col("state") == CONFIRMED)
    return first_positions(said.select("door", "recipient", "stream", F.col("last").alias("upto"), "time"))


def first_positions(said: DataFrame) -> DataFrame:
    """Rows of `positions` that say the same → the first of them."""
    first = said.groupBy(*_SAID).agg(F.min("time").alias("time"))
    return first.sortWithinPartitions("recipient", "upto")


def _rank() -> Column:
    pairs = [F.lit(part) for pair in RANKS.items() for part in pair]
    return F.coalesce(F.create_map(*pairs)[F.col("state")], F.lit(UNKNOWN_RANK))


# ── the job ────────────────────────────────────────────────────────────────────────────────────

DELIVERIES: Final = MergedTable(
    "deliveries", _WHAT, ("first", "month", "recipient"), fold_deliveries, ("first", "key", "recipient"), by_kind
)

POSITIONS: Final = MergedTable("positions", _SAID, ("recipient", "upto"), first_positions, ("recipient", "upto"))


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Decode and fold everything that is archived."""
    archived, files = watermark(place.client, "events"), 0
    for turn, intent in place.turns(
        "ledger", archived, lambda after: plan_from_lake(place, after, min(archived, after + TURN_IDS))
    ):
        changes, memory = changes_of(place, turn, intent)
        turn.publish(changes, memory)
        files += sum(len(change.added) for change in changes)
    return JobOutcome(f"ledger: {files:,} files up to id {archived:,}", {"files": files, "upto": archived})


def plan_from_lake(place: Workplace, after: int, upto: int) -> Intent:
    """The ids in (after, upto], cut where `events` has a new day. `LakeHole` where a file of it is gone."""
    cuts = days_between(place.events_in(after, upto), after, upto)
    return Intent(after, upto, tuple(Slice(lo, hi, day) for lo, hi, day in cuts))


def events_between(place: Workplace, after: int, upto: int, *columns: str, streams: Sequence[str] = ()) -> DataFrame:
    """The rows of `events` (or of *streams*) with ids in (after, upto], from those files only whose names say so."""
    wanted = ("id", *(name for name in columns if name != "id"))
    frame = place.read("events", place.events_in(after, upto), *wanted, streams=streams)
    return frame.where((F.col("id") > after) & (F.col("id") <= upto)).select(*columns)


def changes_of(place: Workplace, turn: Turn, intent: Intent) -> tuple[list[TableChange], dict[str, Any]]:
    """Decode slice by slice, then fold all of it: what changes in the tables, and what the record is to remember."""
    heads = heads_from_rows(turn.memory.get("batches", ()))
    records: list[WrittenFile] = []
    others: list[TableChange] = []
    said = 0
    for one in intent.slices:
        written, unread, found = _decode_slice(place, one, heads)
        records, heads, said = records + written, found.heads, said + found.positions
        others.append(TableChange("unreadable", unread))
    if records:
        decoded, rows = place.read("ledger", records), sum(one.rows for one in records)
        others.append(merge_into(place, turn, DELIVERIES, fold(decoded), intent, rows))
        if said:
            others.append(merge_into(place, turn, POSITIONS, positions(decoded), intent, rows))
    return _joined([TableChange("ledger", records), *others]), {
        **turn.memory,
        "batches": heads_to_rows(heads),
    }


def _joined(changes: Iterable[TableChange]) -> list[TableChange]:
    """One change for each table."""
    by_table: dict[str, TableChange] = {}
    for one in changes:
        before = by_table.get(one.table, TableChange(one.table, ()))
        by_table[one.table] = TableChange(one.table, [*before.added, *one.added], [*before.removed, *one.removed])
    return list(by_table.values())


@dataclass(frozen=True, slots=True)
class _LookThrough:
    """What one task does: look through a file that was just decoded."""

    store: FileStore
    location: str

    def run(self) -> SeenBatches:
        return look_through(read_batches(self.store, self.location, LOOKED_AT))


def _decode_slice(
    place: Workplace, one: Slice, heads: Heads
) -> tuple[list[WrittenFile], list[WrittenFile], FoundBatches]:
    """The files of a slice for `ledger` and for `unreadable`, and what was found in it."""
    store = place.lake.store
    decoded = transform(events_between(place, one.lo, one.hi, "id", "stream", "kind", "body", streams=SYSTEM))
    written = write_frame(decoded, store, [file_of("ledger", one)])
    found = find_in(place.in_tasks(_LookThrough.run, [_LookThrough(store, file.location) for file in written]), heads)
    if not found.unreadable and not found.repeats:
        return written, [], found
    whole = place.read("ledger", written)
    unread = write_frame(unreadable(whole), store, [file_of("unreadable", one)])
    left = whole.where((F.col("state") != UNREADABLE) & ~F.col("entry").isin(*found.repeats, -1))
    again = write_frame(left, store, [file_of("ledger", one)])
    store.delete(store.relative(file.location) for file in written)
    return again, unread, found
