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

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.iceberg.files import PlannedFile
from penstock.iceberg.store import StoredFile
from penstock.pipeline import audit_queries, audit_readers, audit_verdicts
from penstock.pipeline.audit_cut import AuditCut, take_cut
from penstock.pipeline.audit_verdicts import AuditFinding
from penstock.pipeline.commit import watermark
from penstock.pipeline.file_sums import SUMS, SumUpFile
from penstock.pipeline.jobs import JobOutcome, Workplace, archive, ledger
from penstock.pipeline.ledger_rows import STREAM
from penstock.wire.table_columns import NAMES

OPTIONS: Mapping[str, str] = {"full": "read every file again, also those that an earlier audit has summed up"}

SUMMARIES: Final = "_audit"
"""The folder of the lake in which sums over files are kept, so that an audit reads each file once."""

FAILING: Final = ("missing", "double")

_PASSED_OVER: Final = ("chunk", "offset", "size", "type", "body", "schema_version")
_LOOKED_AT: Final = tuple(name for name in NAMES if name not in _PASSED_OVER)
"""The columns of `events` that checks look at. Bodies are read of one stream only."""


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
    report.findings += audit_verdicts.check_files(
        [one.file for one in files], max(cut.upto, watermark(place.client, "events")), begin
    )
    if not files:
        report.findings += [] if not cut.upto else [AuditFinding("missing", "files", "there are no files at all")]
        return report
    summary = _summaries(place, files, full=full).cache()
    events = place.read("events", files, *_LOOKED_AT)
    present = place.read("events", files, "stream", "kind", "body", streams=(audit_readers.PRESENCE,))
    batches = place.read("events", files, *_LOOKED_AT, streams=(STREAM,))
    records = place.read("ledger", place.files("ledger"))
    report.counts = _counts(summary, files)
    told = audit_queries.batches_in_events(batches).cache()
    epochs = audit_queries.epochs(told, records).orderBy("node", "epoch").collect()
    report.findings += audit_verdicts.check_events(place, summary, cut, begin)
    bad = place.read("unreadable", place.files("unreadable")).cache()
    report.findings += audit_verdicts.check_batches(told, records, bad.select("entry"))
    report.findings += audit_verdicts.check_unreadable(bad)
    report.findings += (finding for row in epochs for finding in audit_verdicts.check_epoch(row, events))
    report.findings += audit_verdicts.check_mailboxes(place, cut, records, events, audit_verdicts.last_crash(epochs))
    report.findings += audit_verdicts.check_pushers(cut, events, records)
    report.findings += audit_verdicts.check_readers(events, present, records)
    report.findings += audit_verdicts.check_typed(place, begin)
    told.unpersist()
    bad.unpersist()
    summary.unpersist()
    return report


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
