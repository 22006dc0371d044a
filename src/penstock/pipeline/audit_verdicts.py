"""Which verdict each finding of an audit gets: missing, double, unknown(…), pending; and the words for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline import audit_queries, audit_readers
from penstock.pipeline.audit_cut import AuditCut, frame_of, gather, heads_of
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace
from penstock.pipeline.ledger_rows import STREAM
from penstock.wire.lake_files import LakeFile

NAMED: Final = 100
"""Findings of one check that are named one by one. Over it: the report says how many more there are."""


Read = Callable[..., DataFrame]
"""Reads columns of `events`, which are named. A check that calls it reads all files once, if it has one question."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that an audit has to say."""

    verdict: str  # missing, double, unknown(…), pending
    check: str  # files, events, heads, ledger, mailboxes, pushers, devices, typed
    words: str


def check_files(files: Iterable[LakeFile], upto: int, begin: int = 0) -> Iterator[AuditFinding]:
    """Whether the names cover every id from *begin* to *upto* once."""
    more: Counter[str] = Counter()
    for number, finding in enumerate(_uncovered(files, upto, begin)):
        if number < NAMED:
            yield finding
        else:
            more[finding.verdict] += 1
    for verdict, count in more.items():
        yield AuditFinding(verdict, "files", f"and {count:,} more")


def _uncovered(files: Iterable[LakeFile], upto: int, begin: int) -> Iterator[AuditFinding]:
    position, file = begin, None
    for file in files:
        if file.lo > position:
            yield AuditFinding("missing", "files", f"no file has the ids {position + 1} to {file.lo}")
        elif file.lo < position:
            yield AuditFinding(
                "double", "files", f"{file.path} claims the ids {file.lo + 1} to {position} of another file"
            )
        position = max(position, file.hi)
    if file and position < upto:
        yield AuditFinding("missing", "files", f"no file has the ids {position + 1} to {upto}")


def check_events(place: Workplace, summary: DataFrame, cut: AuditCut, begin: int) -> Iterator[AuditFinding]:
    """Streams without a hole, up to their heads, and no id twice."""
    for row, more in _named(audit_queries.holes(summary, begin)):
        yield AuditFinding("missing", "events", _hole(row) + more)
    for row, more in _named(audit_queries.doubles(summary)):
        yield AuditFinding("double", "events", f"{row.file} has {row.repeats} rows whose ids are there already{more}")
    listed = frame_of(place, cut.heads, audit_queries.HEADS)
    unlisted = summary.select("stream").distinct().join(listed, "stream", "left_anti").toLocalIterator()
    others = heads_of(place.client, (row.stream for row in unlisted), watermark(place.client, "events"))
    every = pa.concat_tables([cut.heads, gather(others, audit_queries.HEADS)])
    heads = frame_of(place, every, audit_queries.HEADS)
    for row, more in _named(audit_queries.cut_ends(summary, heads, begin)):
        yield AuditFinding("missing", "heads", _cut_end(row) + more)


def check_unreadable(bad: DataFrame) -> Iterator[AuditFinding]:
    """Batches of the ledger, and requests to erase, that could not be decoded."""
    for row, more in _named(bad.where("typed_table IS NULL").orderBy("entry")):
        words = f"entry {row.entry} of {row.stream}, {row.bytes:,} bytes, cannot be read: {row.reason}{more}"
        yield AuditFinding("unknown(unreadable)", "ledger" if row.stream == STREAM else "erased", words)


def check_batches(told: DataFrame, records: DataFrame, unreadable: DataFrame) -> Iterator[AuditFinding]:
    """The ledger's own batches without a gap."""
    for row, more in _named(audit_queries.lost_batches(told, records, unreadable)):
        numbers = str(row.first) if row.first == row.last else f"{row.first} to {row.last}"
        words = f"batch {numbers} of node {row.node}, epoch {row.epoch}, in {row.table}{more}"
        yield AuditFinding("missing", "ledger", words)


def last_crash(epochs: list[Row]) -> int | None:
    """When a node last came back after it had ended without closing its epoch, in microseconds since 1970."""
    return max((row.next_began for row in epochs if _is_crashed(row)), default=None)


def check_epochs(spark: SparkSession, epochs: list[Row], events: Read) -> Iterator[AuditFinding]:
    """What a node did not close, or dropped: the records of then may be lost. One pass over *events* for all."""
    crashed = [(row.node, row.epoch, row.ended, row.next_began) for row in epochs if _is_crashed(row)]
    during: dict[tuple[str, int], int] = {}
    if crashed:
        intervals = spark.createDataFrame(crashed, "node STRING, epoch BIGINT, ended BIGINT, next_began BIGINT")
        found = audit_queries.entries_during(events("stream", "index", "time"), intervals)
        during = {(row.node, row.epoch): row.entries for row in found.collect()}
    for row in epochs:
        if row.lost:
            words = f"node {row.node}, epoch {row.epoch}: {row.lost} records were dropped while the log took nothing"
            yield AuditFinding("unknown(crash)", "ledger", words)
        if _is_crashed(row):
            words = (
                f"node {row.node} did not close epoch {row.epoch}: what it sent between {_utc(row.ended)} and "
                f"{_utc(row.next_began)} may be unrecorded: for each reader at most the "
                f"{during.get((row.node, row.epoch), 0):,} entries of then"
            )
            yield AuditFinding("unknown(crash)", "ledger", words)


def _is_crashed(row: Row) -> bool:
    """Whether the node has come back after an epoch that it did not close."""
    return not row.closed and row.next_began is not None


def check_mailboxes(
    place: Workplace, cut: AuditCut, records: DataFrame, events: Read, crash: int | None
) -> Iterator[AuditFinding]:
    """Each item that was ever put into a mailbox is pending, or closed."""
    if not cut.mailboxes.num_rows:
        return
    pending = pc.sum(pc.list_value_length(cut.mailboxes["pending"])).as_py() + pc.sum(cut.mailboxes["expired"]).as_py()
    if pending:
        yield AuditFinding("pending", "mailboxes", f"{pending:,} items of {cut.mailboxes.num_rows:,} recipients wait")
    mailboxes = frame_of(place, cut.mailboxes, audit_queries.MAILBOXES)
    for row, more in _named(audit_queries.unclosed(mailboxes, records, events("id", "index"))):
        # The record of an end other than an acknowledgement may be lost in a crash that came after the item.
        excused = crash is not None and (row.accepted is None or row.accepted <= crash)
        words = f"item {row.number} of {row.recipient}, {row.month}, is neither pending nor closed{more}"
        yield AuditFinding("unknown(crash)" if excused else "missing", "mailboxes", words)


def check_pushers(cut: AuditCut, events: Read, records: DataFrame) -> Iterator[AuditFinding]:
    """What waits for apps. It never makes an audit fail."""
    waiting = audit_queries.positions(records, events("id", "stream", "index")).where("pending > 0")
    for row in waiting.orderBy("recipient", "stream").take(NAMED):
        words = f"{row.recipient} has {row.stream} up to id {row.position}; {row.pending:,} entries wait"
        yield AuditFinding("pending", "pushers", words)
    for pusher in cut.pushers:
        if pusher["state"] != "running":
            yield AuditFinding("pending", "pushers", f"pusher {pusher['id']} is {pusher['state']}")


def check_typed(place: Workplace, begin: int) -> Iterator[AuditFinding]:
    """Each entry of the streams of a typed table is a row of it, or in `unreadable`, once."""
    for table in place.client.typed_tables():
        done = watermark(place.client, table.key)  # first: what is committed meanwhile does no harm then
        told = place.read_listed(place.listed("unreadable")).where(F.col("typed_table") == table.name)
        rows = place.read_listed(place.listed(table.key), "id")
        found = rows.union(told.select(F.col("entry").alias("id")))
        events = place.read_listed(place.listed("events").between(begin, done), "id", "stream", "kind")
        wanted = audit_queries.of_typed_table(events.where((F.col("id") > begin) & (F.col("id") <= done)), table)
        for row, more in _named(wanted.join(found, "id", "left_anti").orderBy("id")):
            yield AuditFinding("missing", "typed", f"entry {row.id} of table {table.name}{more}")
        for row, more in _named(found.groupBy("id").count().where("count > 1").orderBy("id")):
            yield AuditFinding("double", "typed", f"entry {row.id} of table {table.name}, {row['count']} times{more}")
        if misfits := told.count():
            words = f"{misfits:,} entries do not fit table {table.name}: `unreadable` says why"
            yield AuditFinding("unknown(unreadable)", "typed", words)


def check_readers(events: Read, present: DataFrame, records: DataFrame) -> Iterator[AuditFinding]:
    """Entries that apps and devices skipped (`audit_readers.py`)."""
    given = audit_readers.taken(audit_queries.without_repeats(records))
    entries = events("id", "stream", "index", "kind", "expires_at", "attributes")
    runs = audit_readers.without_absence(audit_readers.skipped(given, entries), audit_readers.presence(present))
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
