"""`ledger`: the batches of `/_ledger` in `events` → `ledger`, one row a record, `deliveries`, folded, and `positions`.

A batch that comes again is left out, in whichever turn it comes (`pipeline/ledger_rows.py`). One that cannot be read
becomes a row of `unreadable`, and the job goes on.

A turn reads what the archive has written, never the server: it costs the server nothing, and it cannot be
overtaken by a trim. `deliveries` has one row for each delivery: what a turn says of one that is there already is folded
into its row, by rank (`fold_deliveries`), and the files that have such rows are written again (`pipeline/merging.py`).
Nothing is ever too late to be folded in: an acknowledgement may come after 60 days.

A position ("has everything up to here") is no delivery: it says something about all that the recipient was sent until
then, whichever file that is in. So positions have a table of their own, and the two are joined where they are read:
by `core/why.py` for one entry, and by the view `delivery_outcomes` (`wire/table_columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import PlannedFile, WrittenFile
from penstock.pipeline.commit import Intent, Slice, TableChange, Turn, watermark
from penstock.pipeline.jobs import TASK_FILES, JobOutcome, Workplace
from penstock.pipeline.lake import days_between
from penstock.pipeline.ledger_rows import (
    BATCH,
    DecodeBatches,
    DecodedBatches,
    Heads,
    LeaveOut,
    find_repeats,
    heads_from_rows,
    heads_to_rows,
)
from penstock.pipeline.merging import MergedTable, StoredRows, merge_into
from penstock.pipeline.writing import by_kind, file_of
from penstock.wire.ledger import CONFIRMED, RANKS, UNKNOWN_RANK
from penstock.wire.table_columns import TABLES

OPTIONS: Mapping[str, str] = {}

TURN_IDS: Final = 2_000_000
FEW_FILES: Final = 4
"""So many files of `events` one task decodes in any case, unless they are large: two are not worth their start."""

TASK_BYTES: Final = 32 * 1024 * 1024
"""Of files of `events` that one task decodes."""

_WHAT: Final = ("door", "recipient", "stream", "first", "last", "key", "month", "number")
_SAID: Final = ("door", "recipient", "stream", "upto")
_NAMES: Final = [column.name for column in TABLES["deliveries"]]


# ── transforms ─────────────────────────────────────────────────────────────────────────────────


def deliveries_of(records: pa.Table) -> pa.Table:
    """Rows of `ledger` → rows of `deliveries`, one for each record."""
    found = records.filter(pc.invert(pc.is_in(records["state"], pa.array((BATCH, CONFIRMED)))))
    state, time = found["state"], found["time"]
    never = pa.scalar(None, time.type)
    tried = pc.is_in(state, pa.array(("sent", "retried")))
    made = {
        **{name: found[name] for name in (*_WHAT, "state", "reason", "expires_at")},
        "first_time": time,
        "last_time": time,
        "sent_time": pc.if_else(pc.equal(state, "sent"), time, never),
        "acked_time": pc.if_else(pc.equal(state, "acked"), time, never),
        "attempts": tried.cast(pa.int64()),
        "upto": found["entry"],
    }
    return pa.table([made[name] for name in _NAMES], _NAMES)


def fold_deliveries(rows: pa.Table) -> pa.Table:
    """Rows of `deliveries` that speak of the same thing → one, in the state that counts."""
    ranks = [(pc.equal(rows["state"], name), rank) for name, rank in RANKS.items()]
    rank = pc.case_when(pc.make_struct(*(one for one, _ in ranks)), *(rank for _, rank in ranks), UNKNOWN_RANK)
    told = pa.table([rank, rows["last_time"], rows["state"], rows["reason"]], ["rank", "time", "state", "reason"])
    order = [("rank", "ascending"), ("time", "descending"), ("state", "ascending"), ("reason", "ascending")]
    best = pc.sort_indices(told, order).to_numpy()
    place = numpy.empty(len(best), numpy.int64)
    place[best] = numpy.arange(len(best))
    sums = {"first_time": "min", "last_time": "max", "sent_time": "min", "acked_time": "min", "attempts": "sum",
            "expires_at": "max", "upto": "max"}  # fmt: skip
    folded = grouped(rows.append_column("place", pa.array(place)), _WHAT, {**sums, "place": "min"})
    counting = rows.select(["state", "reason"]).take(pa.array(best[folded["place"].to_numpy()]))
    return folded.append_column("state", counting["state"]).append_column("reason", counting["reason"]).select(_NAMES)


def grouped(rows: pa.Table, keys: Sequence[str], sums: Mapping[str, str]) -> pa.Table:
    """Rows with the same keys → one: *sums* says what becomes of each of the other columns."""
    found = rows.group_by(list(keys), use_threads=False).aggregate(list(sums.items()))
    return found.select([*keys, *(f"{name}_{how}" for name, how in sums.items())]).rename_columns([*keys, *sums])


def positions_of(records: pa.Table) -> pa.Table:
    """Rows of `ledger` → how far recipients said that they had come."""
    said = records.filter(pc.equal(records["state"], CONFIRMED))
    names = ["door", "recipient", "stream", "last", "time"]
    return said.select(names).rename_columns(["door", "recipient", "stream", "upto", "time"])


def first_positions(said: pa.Table) -> pa.Table:
    """Rows of `positions` that say the same → the first of them."""
    return grouped(said, _SAID, {"time": "min"})


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


def changes_of(place: Workplace, turn: Turn, intent: Intent) -> tuple[list[TableChange], dict[str, Any]]:
    """Decode slice by slice, then fold all of it: what changes in the tables, and what the record is to remember."""
    heads = heads_from_rows(turn.memory.get("batches", ()))
    records: list[WrittenFile] = []
    unreadable: list[WrittenFile] = []
    said = 0
    for one in intent.slices:
        made = place.in_tasks(DecodeBatches.run, list(_decoding(place, one)))
        written, heads = _without_repeats(place, one, made, heads)
        records += written
        unreadable += (found.unreadable for found in made if found.unreadable)
        said += sum(found.positions for found in made)
    changes = [TableChange("ledger", records), TableChange("unreadable", unreadable)]
    if records:
        changes.append(merge_into(place, turn, DELIVERIES, _made_of(place, records, deliveries_of), intent))
    if records and said:
        changes.append(merge_into(place, turn, POSITIONS, _made_of(place, records, positions_of), intent))
    return changes, {**turn.memory, "batches": heads_to_rows(heads)}


def _decoding(place: Workplace, one: Slice) -> Iterator[DecodeBatches]:
    """Tasks for the files of `events` that have the slice, each with some that follow each other."""
    files = place.events_in(one.lo, one.hi)
    most = FEW_FILES
    if len(files) > FEW_FILES:
        most = min(TASK_FILES, max(most, -(-len(files) // (4 * place.spark.sparkContext.defaultParallelism))))
    chunk: list[PlannedFile] = []
    for number, file in enumerate(files, 1):
        chunk.append(file)
        if number == len(files) or len(chunk) >= most or sum(one.size for one in chunk) >= TASK_BYTES:
            last = max(some.file.hi for some in chunk)
            ids = Slice(max(one.lo, chunk[0].file.lo), min(one.hi, last), one.day)
            yield DecodeBatches(place.lake.store, tuple(one.location for one in chunk), file_of("ledger", ids))
            chunk = []


def _without_repeats(
    place: Workplace, one: Slice, made: Iterable[DecodedBatches], heads: Heads
) -> tuple[list[WrittenFile], Heads]:
    """The files of a slice for `ledger`, without batches that come again, and the heads after it."""
    found = list(made)
    repeats, newest = find_repeats((batch for one in found for batch in one.batches), heads)
    store, kept, tasks = place.lake.store, list[WrittenFile](), list[LeaveOut]()
    for written, ids in ((one.records, frozenset(batch[0] for batch in one.batches)) for one in found):
        if written and repeats & ids:
            tasks.append(LeaveOut(store, written.location, file_of("ledger", one), repeats))
        elif written:
            kept.append(written)
    kept += (again for again in place.in_tasks(LeaveOut.run, tasks) if again)
    store.delete(store.relative(task.location) for task in tasks)
    return kept, newest


def _made_of(place: Workplace, records: Iterable[WrittenFile], make: Any) -> list[StoredRows]:
    return [StoredRows(place.lake.store, one.location, one.rows, make) for one in records]
