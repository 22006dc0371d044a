"""`typed`: JSON bodies in `events` → the typed tables that are declared, by `PUT /v1/lake/tables/NAME`.

Each table has a record and a watermark of its own. One that is declared late begins at the first entry that the lake
has, and comes up to the others turn by turn: a run does one turn of each table, for which the archive waits.

The record keeps the declaration that a turn began with. A turn that was cut off is redone with it, whatever was
declared since, and makes the same rows.

What does not fit becomes a row of `unreadable`, which is a table of the record `lake/ledger`. So such a turn makes two
commits: first those rows, with a mark in that record how far the table has told of them; then its own rows. Cut off in
between, it finds the mark, and tells nothing twice.

`repair` makes a table again with the same two commits: what it has told is told anew, in the place of what was there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import PlannedFile, WrittenFile, describe_file
from penstock.pipeline.commit import Intent, TableChange, Turn, watermark
from penstock.pipeline.jobs import JobOutcome, Workplace, say_progress
from penstock.pipeline.jobs.erase import erased_upto, rows_removed
from penstock.pipeline.jobs.ledger import plan_from_lake
from penstock.pipeline.lake import Lake
from penstock.pipeline.typed_rows import DecodedFile, DecodeFile, RemoveRows, may_be_in
from penstock.wire.lake_files import TYPED, LakeFile, shown_name
from penstock.wire.table_columns import TABLES
from penstock.wire.typed_tables import TypedTable

OPTIONS: Mapping[str, str] = {}

TURN_IDS: Final = 1_000_000
"""Ids of one turn: some ten seconds of work, which a crash repeats at most, and for which the archive waits."""

MARKS: Final = "typed"
"""In the memory of the record `lake/ledger`: up to which id each typed table has told what does not fit it."""

UNTOLD: Final = "untold"
"""Beside the marks: the typed tables whose rows of `unreadable` are lost, until they are made again."""


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Do one turn of each table that is behind, and remove what belongs to tables that were deleted."""
    declared = place.client.typed_tables()
    kept = {table.key for table in declared}
    removed = [name for name in _records(place) if name not in kept]
    for name in removed:
        _remove(place, name)
    ready = min(watermark(place.client, "events"), watermark(place.client, "ledger"))
    done = {table.name: _advance(place, table, ready) for table in declared}
    more = any(one.upto < ready for one in done.values())
    said = [f"{name} {one.rows:,} rows up to id {one.upto:,} of {ready:,}" for name, one in done.items()]
    said += [f"{shown_name(name)} removed" for name in removed]
    rows = {name: one.rows for name, one in done.items()}
    return JobOutcome(f"typed: {'; '.join(said) or 'no tables'}", {"rows": rows, "more": more}, more=more)


def _records(place: Workplace) -> list[str]:
    return [key.removeprefix("lake/") for key in place.client.list(f"lake/{TYPED}")]


# ── a turn ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Advance:
    """What one turn of a table has done."""

    rows: int
    upto: int


def _advance(place: Workplace, table: TypedTable, ready: int) -> _Advance:
    def remember(memory: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**memory, "erased": _erased_in_both(place, memory), "table": table.shown()}

    def plan(after: int) -> Intent:
        return plan_from_lake(place, after, min(ready, after + TURN_IDS))

    for turn, intent in place.turns(table.key, ready, plan, remember):
        return _Advance(_perform(place, turn, intent), intent.upto)
    return _Advance(0, ready)


def _erased_in_both(place: Workplace, memory: Mapping[str, Any]) -> int:
    """Up to which id the requests are done, in the table and in the files of `events` that its rows come from.

    An `events` that was made again may have what was erased before, until the next `erase`.
    """
    erased = erased_upto(place.client)
    return min(erased, int(memory.get("erased", erased)))


def _perform(place: Workplace, turn: Turn, intent: Intent) -> int:
    """Make the rows, say what does not fit, commit."""
    table = TypedTable.read(turn.memory["table"])
    made = _decode(place, table, intent)
    if misfits := [one.unreadable for one in made if one.unreadable]:
        _tell_misfits(place, turn, table, intent.upto, misfits)
    rows = [one.rows for one in made if one.rows]
    reshaped = not turn.table(table.key).is_written
    turn.publish([TableChange(table.key, rows, reshaped=reshaped)])
    return sum(one.rows for one in rows)


def make_again(place: Workplace, name: str) -> tuple[int, int]:
    """Make the table again from `events`, as it was declared for its last turn; the number of rows, and up to where.

    What was told of it is replaced first. A repair that is cut off there is run again, and replaces that once more.
    """
    turn = place.turn(name)
    memory = {**turn.memory, "erased": _erased_in_both(place, turn.memory)}
    table = TypedTable.read(memory["table"])
    turn.start_anew()
    made = _decode(place, table, Intent(0, turn.done, ()))
    _tell_misfits(place, turn, table, turn.done, [one.unreadable for one in made if one.unreadable], anew=True)
    rows = [one.rows for one in made if one.rows]
    turn.replace([TableChange(name, rows)], memory)
    turn.end()
    return sum(one.rows for one in rows), turn.done


def _decode(place: Workplace, table: TypedTable, intent: Intent) -> list[DecodedFile]:
    sources = [one for one in place.events_in(intent.after, intent.upto) if may_be_in(table.streams, one)]
    return place.in_tasks(DecodeFile.run, [_task(place, table, one, intent) for one in sources])


def _task(place: Workplace, table: TypedTable, source: PlannedFile, intent: Intent) -> DecodeFile:
    lo, hi = max(source.file.lo, intent.after), min(source.file.hi, intent.upto)
    return DecodeFile(place.lake.store, source.location, table, LakeFile(lo, hi, source.file.day, table.key))


# ── what does not fit ──────────────────────────────────────────────────────────────────────────


def _tell_misfits(
    place: Workplace, turn: Turn, table: TypedTable, upto: int, misfits: Sequence[WrittenFile], *, anew: bool = False
) -> None:
    """Add rows to `unreadable`, unless that was done before the turn was cut off. *anew*: they are all it has told."""
    store, beside = place.lake.store, place.turn("ledger")
    try:
        marks = beside.memory.get(MARKS, {})
        if not anew and marks.get(table.key, 0) >= upto:
            store.delete(store.relative(one.location) for one in misfits)
            return
        # Whoever removes the table takes its record first and this one then: its rows do not come back after that.
        turn.beat()
        former = [key for key in marks if shown_name(key) == table.name and key != table.key]
        change = _without(place, beside, table.name) if former or anew else TableChange("unreadable", ())
        memory = _without_marks(beside.memory, [*former, table.key] if anew else former)
        memory[MARKS][table.key] = upto
        beside.replace([TableChange("unreadable", [*change.added, *misfits], change.removed)], memory)
    finally:
        beside.end()


def _without(place: Workplace, beside: Turn, name: str) -> TableChange:
    """`unreadable` without what a table of this name has told."""

    def told(rows: pa.RecordBatch) -> Any:
        return pc.fill_null(pc.equal(rows["typed_table"], name), False)

    files = beside.table("unreadable").files()
    place.lake.check(files)
    tasks = [RemoveRows(place.lake.store, one, TABLES["unreadable"], told) for one in files]
    return rows_removed(place, "unreadable", tasks)[0]


def _without_marks(memory: Mapping[str, Any], tables: Sequence[str]) -> dict[str, Any]:
    """The memory of `lake/ledger`, without what it says of these tables."""
    marks = {key: upto for key, upto in memory.get(MARKS, {}).items() if key not in tables}
    return {**memory, MARKS: marks, UNTOLD: [key for key in memory.get(UNTOLD, ()) if key not in tables]}


@dataclass(frozen=True, slots=True)
class ToldMisfits:
    """What a record `lake/ledger` that is made again keeps of typed tables: rows of `unreadable`, and its memory."""

    change: TableChange
    memory: Mapping[str, Any]


def told_misfits(place: Workplace, beside: Turn) -> ToldMisfits:
    """What typed tables have told so far. Where `unreadable` cannot be read, it is written down whose rows are lost."""
    told = {name: beside.memory[name] for name in (MARKS, UNTOLD) if beside.memory.get(name)}
    if MARKS in told:
        try:
            files = Lake(place.lake.store).files("unreadable", {"tables": beside.tables})  # as it is in the store now
            return ToldMisfits(_told_rows(place, files), told)
        except Exception as error:  # noqa: BLE001 - of a task it is Spark's own; and what is made again is right, too
            say_progress(f"typed: what was told in unreadable cannot be read: {error}"[:300])
    lost = {*told.get(UNTOLD, ()), *told.get(MARKS, ())}
    return ToldMisfits(TableChange("unreadable", ()), {UNTOLD: sorted(lost)} if lost else {})


def _told_rows(place: Workplace, files: Sequence[PlannedFile]) -> TableChange:
    store = place.lake.store
    tasks = [RemoveRows(store, one, TABLES["unreadable"], _is_of_the_system) for one in files]
    change, _ = rows_removed(place, "unreadable", tasks)
    whole = [one for one in files if one.location not in change.removed]
    return TableChange(
        "unreadable", change.added, found=[describe_file(store, store.relative(one.location)) for one in whole]
    )


def _is_of_the_system(rows: pa.RecordBatch) -> Any:
    return pc.is_null(rows["typed_table"])


# ── a table that was deleted ───────────────────────────────────────────────────────────────────


def _remove(place: Workplace, name: str) -> None:
    """Remove rows, files and record of a table that is not declared any more. Cut off, it is done again."""
    turn = place.turn(name)  # whoever worked on it can finish nothing any more
    beside = place.turn("ledger")
    memory = _without_marks(beside.memory, [name])
    if name in beside.memory.get(MARKS, {}):
        beside.replace([_without(place, beside, shown_name(name))], memory)
    beside.end(memory)
    turn.point_at_none()
    place.lake.store.delete([one.path for one in place.lake.store.list(name)])
    turn.end()
    place.client.delete(f"lake/{name}")
