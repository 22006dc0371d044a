"""`repair`: what the lake has lost is made again.

    events                                       from the log; what was trimmed there, from data files that are left
    ledger, deliveries, positions, unreadable    from `events`, all four in one commit
    rollup_hourly, activity                      from `events` and `ledger`, both in one commit
    a typed table                                from `events`; what does not fit is told anew in `unreadable`

What typed tables have told in `unreadable` is kept when that is made again. Where it is lost, they are made again.

Without options it looks at the metadata and the data files of every table, and makes again what is gone. Nobody sees
anything of a repair before its commit. Cut off anywhere, it is run again, with the same result. A lake that was
moved is not lost: `pipeline/moved_lake.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from penstock.errors import InputInvalid, OperatorError
from penstock.iceberg.files import PlannedFile, WrittenFile, describe_file, read_batches
from penstock.pipeline.client import RecordChanged
from penstock.pipeline.commit import Slice, TableChange, watermark
from penstock.pipeline.jobs import BEGIN, JobOutcome, Workplace, archive, ledger, rollup, say_progress, typed
from penstock.pipeline.lake import RECORD_OF, Lake, LakeHole
from penstock.pipeline.untangling import untangle
from penstock.pipeline.writing import CopyRows, CopySlice, file_of, rows_between
from penstock.units import parse_moment, parse_whole
from penstock.wire.lake_files import RECORDS, TYPED, LakeFile, first_hole, parse_location, shown_name, tables_of

OPTIONS: Mapping[str, str] = {
    "table": "make this table again, a typed one too, and those written with it; without it, whatever has lost files",
    "from": "with --table events: archive again from this id on",
    "to": "… up to this id",
    "since": "instead of --from: what was published at or after this time, as 2026-11-15T12:00:00Z",
    "until": "instead of --to: what was published before this time",
    "moved-from": "instead of --table: where the lake was before; --lake says where it is now",
    "dry-run": "say what would be done, and do nothing",
}
_RANGE: Final = ("from", "to", "since", "until")
_FROM_BACKUP: Final = "Put their files back, from a backup of the lake."
_JOBS: Final = {"ledger": ledger, "rollup": rollup}


class CannotRepair(OperatorError):
    """Neither the log nor the lake has what is to be made again."""

    code = "cannot_repair"

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One thing to be done, in one commit: ids of `events` in (after, upto], or all tables of a record."""

    record: str
    why: str
    after: int = 0
    upto: int = 0

    @property
    def words(self) -> str:
        """What it does, and why."""
        if self.upto:
            return f"events, ids {self.after + 1:,} to {self.upto:,}, from the log: {self.why}"
        source = {"events": "the log", "rollup": "events and ledger"}.get(self.record, "events")
        return f"{_tables(self.record)} from {source}: {self.why}"


def _tables(record: str) -> str:
    return ", ".join(map(shown_name, tables_of(record)))


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Make again what is asked for, or what is gone."""
    steps, dry_run = 0, "dry-run" in options
    lines: list[str] = []
    failures: list[OperatorError] = []
    for step in _steps(place, options):  # each is looked for when those before it are done
        steps += 1
        say_progress(f"repair: {step.words}")
        try:
            done, lost = _perform(place, step, dry_run=dry_run)
        except (CannotRepair, LakeHole) as error:
            failures.append(error)
        else:
            lines.append(f"{step.words}: {done}")
            failures += lost
    if failures and not lines:
        raise failures[0]
    lines += [f"not done: {error} [{error.code}] {error.remedy}" for error in failures]
    told = "\n".join(lines) or "nothing is lost: every table has its metadata and its data files"
    data = {"steps": steps, "failed": len(failures), "dry_run": dry_run}
    return JobOutcome(f"repair: {told}", data, exit_code=1 if failures else 0)


def _perform(place: Workplace, step: RepairStep, *, dry_run: bool) -> tuple[str, list[CannotRepair]]:
    """What was done, and what could not be."""
    if step.upto:
        return _archive_again(place, step.after, step.upto, dry_run=dry_run), []
    if step.record == "events":
        return _rebuild_events(place, dry_run=dry_run)
    return _rebuild(place, step.record, dry_run=dry_run), []


# ── what is to be done ─────────────────────────────────────────────────────────────────────────


def _steps(place: Workplace, options: Mapping[str, str]) -> Iterator[RepairStep]:
    table = options.get("table", "")
    if any(name in options for name in _RANGE):
        if table != "events":
            raise InputInvalid("--table", "is not events, and ids are those of events", remedy="Add --table events.")
        after, upto = _wanted_range(place, options)
        yield RepairStep("events", "as asked for", after, upto)
        return
    declared = {one.name: one.key for one in place.client.typed_tables()}
    follow = _following(place) if "dry-run" in options else ()
    if "table" not in options:
        for name in (*RECORDS, *declared.values()):
            yield from _damage(place, name, follow)
        return
    names = RECORD_OF | declared
    if table not in names:
        raise InputInvalid("--table", f"{table[:40]!r} is none of {', '.join(names)}")
    yield RepairStep(names[table], "as asked for")
    for name in declared.values():
        if name != names[table]:
            yield from _untold(place, name, follow if names[table] == "ledger" else ())


def _wanted_range(place: Workplace, options: Mapping[str, str]) -> tuple[int, int]:
    done = watermark(place.client, "events")
    after = _id(options, "from", 1) - 1 if "since" not in options else place.client.position(_time(options, "since"))
    upto = _id(options, "to", done) if "until" not in options else place.client.position(_time(options, "until"))
    if not 0 <= after < min(upto, done):
        remedy = "Name ids that are archived: the archive does the others by itself."
        raise InputInvalid("ids", f"{after + 1:,} to {upto:,} are none of those up to {done:,}", remedy=remedy)
    return after, min(upto, done)


def _id(options: Mapping[str, str], name: str, default: int) -> int:
    return parse_whole(f"--{name}", options.get(name, str(default)))


def _time(options: Mapping[str, str], name: str) -> str:
    return parse_moment(f"--{name}", options[name]).isoformat()


def _damage(place: Workplace, name: str, follow: Collection[str]) -> Iterator[RepairStep]:
    """What of a record's tables is gone."""
    record, fresh = place.client.get(f"lake/{name}").value, Lake(place.lake.store)  # what is in memory may be gone
    gone: list[PlannedFile] = []
    for table in record.get("tables", {}):
        try:
            gone += _gone_files(fresh, table, record)
        except Exception as error:  # noqa: BLE001 - what the library stumbles over in a damaged file is its own affair
            yield RepairStep(name, f"the metadata of {shown_name(table)} cannot be read: {error}"[:300])
            return
    if not gone:
        yield from _untold(place, name, follow)
    elif name != "events":
        yield RepairStep(name, f"{len(gone):,} data files are gone, {gone[0].location} among them")
    else:
        for after, upto in _joined_ranges(gone):
            yield RepairStep(name, "its data file is gone", after, upto)


def _untold(place: Workplace, name: str, follow: Collection[str]) -> Iterator[RepairStep]:
    """What is to be done where `unreadable` has lost what a typed table had told."""
    if name in follow or name in place.client.get("lake/ledger").value.get("memory", {}).get(typed.UNTOLD, ()):
        yield RepairStep(name, "unreadable has lost what does not fit it")


def _following(place: Workplace) -> Collection[str]:
    """The typed tables that a repair of `lake/ledger` would write down as untold. A dry run names them by this."""
    record = place.client.get("lake/ledger").value
    with suppress(Exception):  # as in `_damage`
        if not _gone_files(Lake(place.lake.store), "unreadable", record):
            return ()
    told: Collection[str] = record.get("memory", {}).get(typed.MARKS, {})
    return told


def _gone_files(lake: Lake, table: str, record: Mapping[str, Any]) -> list[PlannedFile]:
    there = {lake.store.location(one.path): one.size for one in lake.store.list(f"{table}/data")}
    return [one for one in lake.files(table, record) if there.get(one.location) != one.size]


def _joined_ranges(files: Sequence[PlannedFile]) -> list[tuple[int, int]]:
    """The ids of *files*, which are in order; those that follow each other, or overlap, as one range."""
    ranges: list[tuple[int, int]] = []
    for one in files:
        if ranges and ranges[-1][1] >= one.file.lo:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], one.file.hi)
        else:
            ranges.append((one.file.lo, one.file.hi))
    return ranges


# ── a range of `events` ────────────────────────────────────────────────────────────────────────


def _archive_again(place: Workplace, after: int, upto: int, *, dry_run: bool) -> str:
    """Put what the log has in the place of the rows with these ids. All other rows stay."""
    trimmed = _trimmed(place)
    if after < trimmed:
        said = (
            f"the log was trimmed up to id {trimmed:,}: the ids {after + 1:,} to {min(upto, trimmed):,} are not in it"
        )
        others = f" Ids from {trimmed + 1:,} on can be archived again." if trimmed < upto else ""
        raise CannotRepair(said, f"{_FROM_BACKUP}{others}")
    slices = _slices(place, after, upto)
    if not slices:
        raise CannotRepair(f"the log has no entries with the ids {after + 1:,} to {upto:,}", "Name other ids.")
    rows = sum(one.rows for one in slices)
    if dry_run:
        touched = [one for one in place.files("events") if one.file.overlaps(after, upto)]
        return f"{rows:,} rows would take the place of what {len(touched):,} files have"
    turn = place.turn("events")
    with suppress(LakeHole):  # if one of these files is gone, they are as they are until it is made again
        untangle(place, turn)
    touched = [one for one in turn.table("events").files() if one.file.overlaps(after, upto)]
    rests = list(_rests(place, touched, after, upto))
    if both := [one for one in rests if any(one is not two and _share_ids(one, two) for two in rests)]:
        turn.end()
        said = f"several files have the same ids beside {after + 1:,} to {upto:,}"
        lo, hi = min([after, *(one.after for one in both)]), max([upto, *(one.upto for one in both)])
        raise CannotRepair(said, f"Name the ids {lo + 1:,} to {hi:,}.")
    begin, end = min([after, *(one.after for one in rests)]), max([upto, *(one.upto for one in rests)])
    tasks = _covering_tasks(place, slices, rests, begin, end)
    say_progress(f"repair: {rows:,} rows in {len(slices):,} files")
    added = place.in_tasks(_run_task, tasks)
    turn.replace([TableChange("events", added, [one.location for one in touched])])
    turn.end()
    return f"{rows:,} rows archived again{_advice(place, after)}"


def _advice(place: Workplace, after: int) -> str:
    """What to do about typed tables that have rows of ids after this one. Mostly nothing: an entry never changes."""
    having = [one.name for one in place.client.typed_tables() if watermark(place.client, one.key) > after]
    named = " and ".join(f"'repair --table {name}'" for name in having)
    return f"; typed tables stay as they are: if bodies were wrong, run {named}" if having else ""


def _slices(place: Workplace, after: int, upto: int) -> list[Slice]:
    slices: list[Slice] = []
    while after < upto:
        planned = archive.plan_from_log(place, after, upto)
        slices, after = [*slices, *planned.slices], planned.upto
    return slices


def _rests(place: Workplace, files: Sequence[PlannedFile], after: int, upto: int) -> Iterator[CopyRows]:
    """What *files* have beside the ids in (after, upto]: at most one file goes beyond each end."""
    store = place.lake.store
    for one in files:
        for lo, hi in ((one.file.lo, min(after, one.file.hi)), (max(upto, one.file.lo), one.file.hi)):
            if lo < hi:
                place.lake.check([one])
                ids = read_batches(store, one.location, ("id",))
                rows = sum(rows_between(batch, lo, hi).num_rows for batch in ids)
                yield CopyRows(store, one.location, lo, hi, replace(one.file, lo=lo, hi=hi, unique=""), rows)


def _share_ids(one: CopyRows, two: CopyRows) -> bool:
    return one.after < two.upto and two.after < one.upto


def _covering_tasks(
    place: Workplace, slices: Sequence[Slice], rests: Sequence[CopyRows], begin: int, end: int
) -> list[CopySlice | CopyRows]:
    """Tasks whose files, by their names, cover the ids in (begin, end] without a gap: also ids that have no rows."""
    store = place.lake.store
    copies = [CopySlice(place.client, store, file_of("events", one), one.rows) for one in slices]
    tasks: list[CopySlice | CopyRows] = [*copies, *(one for one in rests if one.rows)]
    tasks.sort(key=lambda one: one.file)
    ends = pairwise([begin, *(one.file.hi for one in tasks[:-1]), end])
    named = [replace(one.file, lo=lo, hi=hi) for one, (lo, hi) in zip(tasks, ends, strict=True)]
    return [
        replace(one, named=name) if isinstance(one, CopySlice) else replace(one, file=name)
        for one, name in zip(tasks, named, strict=True)
    ]


def _run_task(task: CopySlice | CopyRows) -> WrittenFile:
    return task.run()


def _trimmed(place: Workplace) -> int:
    return int(place.client.call("GET", "/v1/pipeline")["trimmed"])


# ── whole tables ───────────────────────────────────────────────────────────────────────────────


def _rebuild_events(place: Workplace, *, dry_run: bool) -> tuple[str, list[CannotRepair]]:
    """`events` from the log, and from data files that are left of what was trimmed there."""
    trimmed, begin = _trimmed(place), place.begins_after()
    left = _left_files(place, begin, trimmed)
    start = max([trimmed, begin, *(one.hi for one in left)])
    lost = _holes(left, begin, trimmed)
    done = watermark(place.client, "events")
    rows = sum(one.rows for one in _slices(place, start, done))
    said = f"{rows:,} rows from the log after id {start:,}, and {len(left):,} data files from before that"
    without = [
        CannotRepair(f"the ids {lo + 1:,} to {hi:,} are neither in the log nor in the lake", _FROM_BACKUP)
        for lo, hi in lost
    ]
    if dry_run:
        return f"{said} would make it", without
    turn = place.turn("events")
    turn.start_anew()
    found = [describe_file(place.lake.store, one.path) for one in left]
    slices = _slices(place, start, turn.done)
    copies = [CopySlice(place.client, place.lake.store, file_of("events", one), one.rows) for one in slices]
    turn.replace([TableChange("events", place.in_tasks(_run_task, copies), found=found)], {})
    turn.end()
    if lost and lost[0][0] == begin:
        _begin_later(place, lost[0][1])
    return said, without


def _left_files(place: Workplace, begin: int, trimmed: int) -> list[LakeFile]:
    """Data files that are whole and have ids in (begin, trimmed], none of which lies within another of its day.

    What two of one day both have are the same rows; two of different days have none in common.
    """
    listed = sorted(place.lake.store.list("events/data"), key=lambda one: -one.modified)
    found = [file for one in listed if (file := parse_location(one.path)) and file.overlaps(begin, trimmed)]
    cover: list[LakeFile] = []
    reached: dict[str, int] = {}
    done = watermark(place.client, "events")
    for file in sorted(found, key=lambda one: (one.lo, -one.hi)):  # of two for the same ids, the newer one
        if reached.get(file.day, 0) < file.hi <= done and _is_whole(place, file):
            cover.append(file)
            reached[file.day] = file.hi
    return cover


def _is_whole(place: Workplace, file: LakeFile) -> bool:
    with suppress(OSError, ValueError):
        return describe_file(place.lake.store, file.path).rows > 0
    return False


def _holes(files: Sequence[LakeFile], after: int, upto: int) -> list[tuple[int, int]]:
    holes: list[tuple[int, int]] = []
    while hole := first_hole(files, after, upto):
        holes.append(hole)
        after = hole[1]
    return holes


def _begin_later(place: Workplace, after: int) -> None:
    """Write down that the lake has nothing up to this id, as with a log that was trimmed before its first archive."""
    with suppress(RecordChanged):
        place.client.put(BEGIN, {"after": after}, expect=place.client.get(BEGIN).version)


def _rebuild(place: Workplace, name: str, *, dry_run: bool) -> str:
    """The tables of a record from `events`, as their job makes them, in one turn."""
    done = watermark(place.client, name)
    if not done:
        raise CannotRepair(f"nothing was ever written to {_tables(name)}", "Run the jobs first.")
    if dry_run:
        return f"all ids up to {done:,} of {len(place.events_in(0, done)):,} files would be read"
    if name.startswith(TYPED):
        rows, upto = typed.make_again(place, name)
        return f"{rows:,} rows up to id {upto:,}"
    turn = place.turn(name)
    told = typed.told_misfits(place, turn) if name == "ledger" else None
    turn.start_anew()
    changes, memory = _JOBS[name].changes_of(place, turn, ledger.plan_from_lake(place, 0, turn.done))
    made = {change.table: change for change in changes if change}
    empty = {table: TableChange(table, ()) for table in turn.tables}  # one that has no rows was there all the same
    if told:
        own = made.get("unreadable", TableChange("unreadable", ()))
        both = replace(told.change, added=[*own.added, *told.change.added])
        made |= {"unreadable": both} if both else {}
        memory = {**memory, **told.memory}
    turn.replace((empty | made).values(), memory)
    turn.end()
    rows = sum(one.rows for change in changes for one in change.added)
    return f"{rows:,} rows up to id {turn.done:,}"
