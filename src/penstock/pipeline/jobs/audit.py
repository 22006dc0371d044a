"""`audit`: proves from the lake that nothing is missing or there twice, and what became of all that was addressed.

    the cut      read the mailboxes, flush the ledger, read the heads: everything in them has an id of at most L
    the lake     run archive and ledger, up to L at least
    compare      1 events: files without a hole, streams without a hole, up to their heads
                 2 no id twice
                 3 items of mailboxes: pending, or closed
                 4 the ledger's own batches without a gap
                 5 apps of pushers and devices of sps: no entry skipped between two that they got
                 6 typed tables: every entry of their streams is a row, or in `unreadable`, once

Verdicts: pass, pending, unknown(…), missing, double. Only the last two make an audit fail. A crash may lose the record
of a sending; the audit then says how much it cannot know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from penstock.iceberg.files import PlannedFile
from penstock.iceberg.store import StoredFile
from penstock.pipeline import audit_checks, audit_readers
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import watermark
from penstock.pipeline.file_sums import SUMS, SumUpFile
from penstock.pipeline.jobs import JobOutcome, Workplace, archive, ledger
from penstock.pipeline.ledger_batches import STREAM
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import NAMES

OPTIONS: Mapping[str, str] = {"full": "read every file again, also those that an earlier audit has summed up"}

SUMMARIES: Final = "_audit"
"""The folder of the lake in which sums over files are kept, so that an audit reads each file once."""

NAMED: Final = 100
"""Findings of one check that are named one by one. Over it: the report says how many more there are."""

TASK_NAMES: Final = 10_000
"""Streams or mailboxes of a cut that one task compares. As many are objects of Python's while a cut is gathered."""

FAILING: Final = ("missing", "double")

_ARROW: Final = {"STRING": pa.string(), "BIGINT": pa.int64(), "ARRAY<BIGINT>": pa.list_(pa.int64())}

_PASSED_OVER: Final = ("chunk", "offset", "size", "type", "body", "schema_version")
_LOOKED_AT: Final = tuple(name for name in NAMES if name not in _PASSED_OVER)
"""The columns of `events` that checks look at. Bodies are read of one stream only."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that an audit has to say."""

    verdict: str  # missing, double, unknown(…), pending
    check: str  # files, events, heads, ledger, mailboxes, pushers, devices, typed
    words: str


@dataclass(frozen=True, slots=True)
class AuditCut:
    """What the server held at one moment, and the id below which all of it lies."""

    upto: int
    heads: pa.Table  # `audit_checks.HEADS`
    mailboxes: pa.Table  # `audit_checks.MAILBOXES`
    pushers: list[dict[str, Any]]


@dataclass(slots=True)
class AuditReport:
    """What came out."""

    upto: int
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Whether nothing is missing and nothing is there twice."""
        return not any(finding.verdict in FAILING for finding in self.findings)

    def words(self) -> str:
        """The report for people."""
        verdict = "passes" if self.passes else "FAILS"
        sums = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        lines = [f"audit up to id {self.upto:,}: {verdict}", f"  {sums}"]
        return "\n".join(lines + [f"  {one.verdict:14} {one.check}: {one.words}" for one in self.findings])

    def data(self) -> dict[str, Any]:
        """The report for programs."""
        verdict = "pass" if self.passes else "fail"
        found = [asdict(finding) for finding in self.findings]
        return {"upto": self.upto, "verdict": verdict, "counts": self.counts, "findings": found}


def run(place: Workplace, options: Mapping[str, str]) -> JobOutcome:
    """Take a cut, bring the lake up to it, and compare."""
    cut = take_cut(place.client)
    archive.run(place, {})
    ledger.run(place, {})
    report = examine(place, cut, full="full" in options)
    return JobOutcome(report.words(), report.data(), exit_code=0 if report.passes else 1)


def examine(place: Workplace, cut: AuditCut, *, full: bool = False) -> AuditReport:
    """Compare the lake as it is with a cut."""
    report = AuditReport(cut.upto)
    files = place.files("events")
    begin = place.begins_after()
    if begin:
        words = f"what was trimmed up to id {begin} before the first archive is not part of this audit"
        report.findings.append(AuditFinding("unknown(trimmed)", "files", words))
    report.findings += check_files([one.file for one in files], max(cut.upto, watermark(place.client, "events")), begin)
    if not files:
        report.findings += [] if not cut.upto else [AuditFinding("missing", "files", "there are no files at all")]
        return report
    summary = _summaries(place, files, full=full).cache()
    events = place.read("events", files, *_LOOKED_AT)
    present = place.read("events", files, "stream", "kind", "body", streams=(audit_readers.PRESENCE,))
    batches = place.read("events", files, *_LOOKED_AT, streams=(STREAM,))
    records = place.read("ledger", place.files("ledger"))
    report.counts = _counts(summary, files)
    told = audit_checks.batches_in_events(batches).cache()
    epochs = audit_checks.epochs(told, records).orderBy("node", "epoch").collect()
    report.findings += _check_events(place, summary, cut, begin)
    bad = place.read("unreadable", place.files("unreadable")).cache()
    report.findings += _check_batches(told, records, bad.select("entry"))
    report.findings += _check_unreadable(bad)
    report.findings += (finding for row in epochs for finding in _check_epoch(row, events))
    report.findings += _check_mailboxes(place, cut, records, events, _last_crash(epochs))
    report.findings += _check_pushers(cut, events, records)
    report.findings += _check_readers(events, present, records)
    report.findings += _check_typed(place, begin)
    told.unpersist()
    bad.unpersist()
    summary.unpersist()
    return report


# ── the cut ────────────────────────────────────────────────────────────────────────────────────


def take_cut(client: PipelineClient) -> AuditCut:
    """Mailboxes first, then the ledger's flush: an item that is not pending any more has its record in the ledger.

    Heads come last, and so include the flushed batches. What comes after that does no harm: the lake then holds more
    than the audit asks for.
    """
    boxes = (box for month in _months(client) for box in _mailboxes(client, month))
    mailboxes = gather(boxes, audit_checks.MAILBOXES)
    pushers = client.call("GET", "/v1/audit/pushers")["pushers"]
    flushed = client.call("POST", "/v1/audit/cut")["upto"]
    heads = gather(_pages(client, "/v1/audit/heads", "heads"), audit_checks.HEADS)
    return AuditCut(max(flushed, pc.max(heads["last_id"]).as_py() or 0), heads, mailboxes, pushers)


def gather(rows: Iterator[Sequence[Any]], columns: str) -> pa.Table:
    """Rows as Arrow has them, in a tenth of the memory: there may be millions of streams and mailboxes."""
    schema = pa.schema([(name, _ARROW[type]) for name, type in map(str.split, columns.split(", "))])
    pieces: list[pa.RecordBatch] = []
    while some := list(islice(rows, TASK_NAMES)):
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*some, strict=True), schema, strict=True)]
        pieces.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(pieces, schema)


def _frame(place: Workplace, rows: pa.Table, columns: str) -> DataFrame:
    return place.spark.createDataFrame(rows) if rows.num_rows else place.spark.createDataFrame([], columns)


def _months(client: PipelineClient) -> list[str]:
    return [one["month"] for one in client.call("GET", "/v1/retention/months", timeout=600)["months"]]


def _mailboxes(client: PipelineClient, month: str) -> Iterator[tuple[str, str, int, list[int], int]]:
    for box in _pages(client, "/v1/audit/mailboxes", "mailboxes", month=month):
        name = box["recipient"].removeprefix(f"{audit_checks.FOLLOWING}/")  # as the ledger has it
        yield name, month, box["next"], box["pending"], box["expired"]


def _pages(client: PipelineClient, path: str, name: str, **parameters: str) -> Iterator[Any]:
    after: str | None = ""
    while after is not None:
        page = client.call("GET", path, {**parameters, "after": after})
        yield from page[name]
        after = page["after"]


# ── the lake ───────────────────────────────────────────────────────────────────────────────────


def _summaries(place: Workplace, files: list[PlannedFile], *, full: bool) -> DataFrame:
    """Sums over every file, each made by a task. Those of earlier audits are used, unless *full*."""
    place.lake.check(files)
    store = place.lake.store
    stored = {store.location(one.path): one for one in store.list("events/data")}
    sums = {one.file.name: _summary(stored[one.location]) for one in files}
    kept = {one.path for one in store.list(SUMMARIES)}
    fresh = [one for one in files if full or sums[one.file.name] not in kept]
    place.in_tasks(SumUpFile.run, [SumUpFile(store, one.location, sums[one.file.name]) for one in fresh])
    store.delete(kept - set(sums.values()))
    return place.read_stored(list(sums.values()), SUMS)


def _summary(one: StoredFile) -> str:
    """Where a file's sums are. The name changes when somebody has put other bytes under the file's name."""
    name = one.path.rpartition("/")[2]
    return f"{SUMMARIES}/{name}-{int(one.modified * 1000):x}-{one.size:x}.parquet"


def _counts(summary: DataFrame, files: list[PlannedFile]) -> dict[str, int]:
    sums = summary.agg(F.sum("rows"), F.sum("indexes"), F.countDistinct("stream")).first()
    rows, data, streams = sums if sums else (0, 0, 0)
    return {"files": len(files), "rows": rows, "events": data, "streams": streams}


# ── the checks ─────────────────────────────────────────────────────────────────────────────────


def check_files(files: list[LakeFile], upto: int, begin: int = 0) -> Iterator[AuditFinding]:
    """Whether the names cover every id from *begin* to *upto* once."""
    position = begin
    for file in files:
        if file.lo > position:
            yield AuditFinding("missing", "files", f"no file has the ids {position + 1} to {file.lo}")
        elif file.lo < position:
            yield AuditFinding(
                "double", "files", f"{file.path} claims the ids {file.lo + 1} to {position} of another file"
            )
        position = max(position, file.hi)
    if files and position < upto:
        yield AuditFinding("missing", "files", f"no file has the ids {position + 1} to {upto}")


def _check_events(place: Workplace, summary: DataFrame, cut: AuditCut, begin: int) -> Iterator[AuditFinding]:
    for row, more in _named(audit_checks.holes(summary, begin)):
        yield AuditFinding("missing", "events", _hole(row) + more)
    for row, more in _named(audit_checks.doubles(summary)):
        yield AuditFinding("double", "events", f"{row.file} has {row.repeats} rows whose ids are there already{more}")
    listed = _frame(place, cut.heads, audit_checks.HEADS)
    unlisted = [row.stream for row in summary.select("stream").distinct().join(listed, "stream", "left_anti").collect()]
    others = _heads_of(place.client, unlisted, watermark(place.client, "events"))
    heads = listed.union(place.spark.createDataFrame(others, audit_checks.HEADS))
    for row, more in _named(audit_checks.cut_ends(summary, heads, begin)):
        yield AuditFinding("missing", "heads", _cut_end(row) + more)


def _heads_of(client: PipelineClient, streams: list[str], upto: int) -> list[list[Any]]:
    """Heads of streams that no pattern covers. Those that moved on since the archive are left out."""
    found: list[list[Any]] = []
    for begin in range(0, len(streams), 500):
        body = json.dumps({"streams": streams[begin : begin + 500]}).encode()
        found += client.call("POST", "/v1/audit/heads", body=body)["heads"]
    return [head for head in found if head[4] <= upto]


def _check_unreadable(bad: DataFrame) -> Iterator[AuditFinding]:
    for row, more in _named(bad.where("typed_table IS NULL").orderBy("entry")):
        words = f"entry {row.entry} of {row.stream}, {row.bytes:,} bytes, cannot be read: {row.reason}{more}"
        yield AuditFinding("unknown(unreadable)", "ledger" if row.stream == STREAM else "erased", words)


def _check_batches(told: DataFrame, records: DataFrame, unreadable: DataFrame) -> Iterator[AuditFinding]:
    for row, more in _named(audit_checks.lost_batches(told, records, unreadable)):
        numbers = str(row.first) if row.first == row.last else f"{row.first} to {row.last}"
        words = f"batch {numbers} of node {row.node}, epoch {row.epoch}, in {row.table}{more}"
        yield AuditFinding("missing", "ledger", words)


def _last_crash(epochs: list[Row]) -> int | None:
    """When a node last came back after it had ended without closing its epoch, in microseconds since 1970."""
    return max((row.next_began for row in epochs if not row.closed and row.next_began is not None), default=None)


def _check_epoch(row: Row, events: DataFrame) -> Iterator[AuditFinding]:
    if row.lost:
        words = f"node {row.node}, epoch {row.epoch}: {row.lost} records were dropped while the log took nothing"
        yield AuditFinding("unknown(crash)", "ledger", words)
    if row.closed or row.next_began is None:
        return
    during = events.where(F.unix_micros("time").between(row.ended, row.next_began))
    entries = during.where(F.col("index").isNotNull() & ~F.col("stream").startswith("/_")).count()
    words = (
        f"node {row.node} did not close epoch {row.epoch}: what it sent between {_utc(row.ended)} and "
        f"{_utc(row.next_began)} may be unrecorded: for each reader at most the {entries:,} entries of then"
    )
    yield AuditFinding("unknown(crash)", "ledger", words)


def _check_mailboxes(
    place: Workplace, cut: AuditCut, records: DataFrame, events: DataFrame, crash: int | None
) -> Iterator[AuditFinding]:
    if not cut.mailboxes.num_rows:
        return
    pending = pc.sum(pc.list_value_length(cut.mailboxes["pending"])).as_py() + pc.sum(cut.mailboxes["expired"]).as_py()
    if pending:
        yield AuditFinding("pending", "mailboxes", f"{pending:,} items of {cut.mailboxes.num_rows:,} recipients wait")
    mailboxes = _frame(place, cut.mailboxes, audit_checks.MAILBOXES)
    for row, more in _named(audit_checks.unclosed(mailboxes, records, events.select("id", "index"))):
        # The record of an end other than an acknowledgement may be lost in a crash that came after the item.
        excused = crash is not None and (row.accepted is None or row.accepted <= crash)
        words = f"item {row.number} of {row.recipient}, {row.month}, is neither pending nor closed{more}"
        yield AuditFinding("unknown(crash)" if excused else "missing", "mailboxes", words)


def _check_pushers(cut: AuditCut, events: DataFrame, records: DataFrame) -> Iterator[AuditFinding]:
    for row in audit_checks.positions(records, events).where("pending > 0").orderBy("recipient", "stream").take(NAMED):
        words = f"{row.recipient} has {row.stream} up to id {row.position}; {row.pending:,} entries wait"
        yield AuditFinding("pending", "pushers", words)
    for pusher in cut.pushers:
        if pusher["state"] != "running":
            yield AuditFinding("pending", "pushers", f"pusher {pusher['id']} is {pusher['state']}")


def _check_typed(place: Workplace, begin: int) -> Iterator[AuditFinding]:
    for table in place.client.typed_tables():
        done = watermark(place.client, table.key)  # first: what is committed meanwhile does no harm then
        told = place.read("unreadable", place.files("unreadable")).where(F.col("typed_table") == table.name)
        rows = place.read(table.key, place.files(table.key), "id")
        found = rows.union(told.select(F.col("entry").alias("id")))
        events = place.read("events", place.events_in(begin, done), "id", "stream", "kind")
        wanted = audit_checks.of_typed_table(events.where((F.col("id") > begin) & (F.col("id") <= done)), table)
        for row, more in _named(wanted.join(found, "id", "left_anti").orderBy("id")):
            yield AuditFinding("missing", "typed", f"entry {row.id} of table {table.name}{more}")
        for row, more in _named(found.groupBy("id").count().where("count > 1").orderBy("id")):
            yield AuditFinding("double", "typed", f"entry {row.id} of table {table.name}, {row['count']} times{more}")
        if misfits := told.count():
            words = f"{misfits:,} entries do not fit table {table.name}: `unreadable` says why"
            yield AuditFinding("unknown(unreadable)", "typed", words)


def _check_readers(events: DataFrame, present: DataFrame, records: DataFrame) -> Iterator[AuditFinding]:
    """Entries that apps and devices skipped (`audit_readers.py`)."""
    given = audit_readers.taken(audit_checks.without_repeats(records))
    runs = audit_readers.without_absence(audit_readers.skipped(given, events), audit_readers.presence(present))
    for row, more in _named(runs.orderBy("door", "recipient", "stream", "first")):
        words = (
            f"{row.recipient} went on in {row.stream} without a record of {row.entries:,} entries, "
            f"ids {row.first} to {row.last}{more}"
        )
        yield AuditFinding("unknown(skipped)", "pushers" if row.door == audit_readers.APP else "devices", words)


# ── words ──────────────────────────────────────────────────────────────────────────────────────


def _named(found: DataFrame) -> Iterator[tuple[Row, str]]:
    """The first findings; the last of them says how many more there are."""
    rows = found.take(NAMED + 1)
    shown = rows[:NAMED]
    for row in shown:
        rest = len(rows) > NAMED and row is shown[-1]
        yield row, f"; and {found.count() - NAMED:,} more" if rest else ""


def _utc(micros: int) -> str:
    return f"{datetime.fromtimestamp(micros / 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _hole(row: Row) -> str:
    if row.from_index is not None:
        indexes = f"{row.from_index} to {row.to_index}" if row.from_index != row.to_index else f"{row.from_index}"
        return f"{row.stream}: index {indexes} is not all there, between the ids {row.after} and {row.before}"
    return f"{row.stream}: lines are missing in chunk {row.chunk} between byte {row.begin} and {row.end}, in {row.file}"


def _cut_end(row: Row) -> str:
    if row.reached_id is None:
        return (
            f"{row.stream} is not there at all; its head says {row.next_index} events, the last entry id {row.last_id}"
        )
    reached = row.reached or 0
    return (
        f"{row.stream} ends at index {reached}, id {row.reached_id}; its head says {row.next_index} and {row.last_id}"
    )
