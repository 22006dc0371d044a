"""`audit`: proves from the lake that nothing is missing or there twice, and what became of all that was addressed.

    the cut      read the mailboxes, flush the ledger, read the heads: everything in them has an id of at most L
    the lake     run archive and ledger, up to L at least; write files of `events` again whose ids are tangled
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
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline import audit_queries, audit_readers, audit_verdicts
from penstock.pipeline.audit_cut import AuditCut, take_cut
from penstock.pipeline.audit_verdicts import AuditFinding
from penstock.pipeline.commit import watermark
from penstock.pipeline.file_lists import FileList
from penstock.pipeline.file_sums import FOLDER, SUMS, RemoveSums, SumsOfFile
from penstock.pipeline.jobs import TASK_FILES, JobOutcome, Workplace, archive, ledger
from penstock.pipeline.lake import LakeHole
from penstock.pipeline.ledger_rows import STREAM
from penstock.pipeline.untangling import are_tangled, untangle
from penstock.wire.table_columns import LEDGER

OPTIONS: Mapping[str, str] = {"full": "read every file again, also those that an earlier audit has summed up"}

FAILING: Final = ("missing", "double")

_LOOKED_AT: Final = tuple(column.name for column in LEDGER if column.name not in ("reason", "key", "expires_at"))
"""The columns of `ledger` that checks look at. Each check says itself which ones of `events` it does."""


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
    if are_tangled(place.listed("events")):
        turn = place.turn("events")
        untangle(place, turn)
        turn.end()
    report = examine(place, cut, full="full" in options)
    return JobOutcome(report.words(), report.data(), exit_code=0 if report.passes else 1)


def examine(place: Workplace, cut: AuditCut, *, full: bool = False) -> AuditReport:
    """Compare the lake as it is with a cut."""
    report = AuditReport(cut.upto)
    files = place.listed("events")
    begin = place.begins_after()
    if begin:
        words = f"what was trimmed up to id {begin} before the first archive is not part of this audit"
        report.findings.append(AuditFinding("unknown(trimmed)", "files", words))
    report.findings += audit_verdicts.check_files(files, max(cut.upto, watermark(place.client, "events")), begin)
    if not len(files):
        report.findings += [] if not cut.upto else [AuditFinding("missing", "files", "there are no files at all")]
        return report
    summary = _summaries(place, files, full=full)
    events = partial(place.read_listed, files)
    present = events("stream", "kind", "body", streams=(audit_readers.PRESENCE,))
    batches = events("id", "stream", "index", "time", "attributes", streams=(STREAM,))
    records = place.read_listed(place.listed("ledger"), *_LOOKED_AT)
    report.counts = _counts(summary, files)
    told = audit_queries.batches_in_events(batches).cache()
    epochs = audit_queries.epochs(told, records).orderBy("node", "epoch").collect()
    report.findings += audit_verdicts.check_events(place, summary, cut, begin)
    bad = place.read_listed(place.listed("unreadable")).cache()
    report.findings += audit_verdicts.check_batches(told, records, bad.select("entry"))
    report.findings += audit_verdicts.check_unreadable(bad)
    report.findings += audit_verdicts.check_epochs(place.spark, epochs, events)
    report.findings += audit_verdicts.check_mailboxes(place, cut, records, events, audit_verdicts.last_crash(epochs))
    report.findings += audit_verdicts.check_pushers(cut, events, records)
    report.findings += audit_verdicts.check_readers(events, present, records)
    report.findings += audit_verdicts.check_typed(place, begin)
    told.unpersist()
    bad.unpersist()
    summary.unpersist()
    return report


# ── the lake ───────────────────────────────────────────────────────────────────────────────────


def _summaries(place: Workplace, files: FileList, *, full: bool) -> DataFrame:
    """Sums over every file, each made or found by a task. Those of earlier audits are used, unless *full*."""
    _remove_sums(place)
    summary = place.in_groups(files, SumsOfFile(place.lake.store, full), SUMS).cache()
    gone = summary.where("stream IS NULL").first()
    if gone is not None:
        summary.unpersist()
        raise LakeHole(f"{place.lake.store.location(gone.file)} is gone")
    return summary


def _remove_sums(place: Workplace) -> None:
    """Remove the sums of files that are gone, and those of earlier versions, which were not in folders of days."""
    store = place.lake.store
    store.delete(one.path for one in store.list(FOLDER, deep=False))
    days = sorted(store.folders(FOLDER))
    tasks = [RemoveSums(store, days[begin : begin + TASK_FILES]) for begin in range(0, len(days), TASK_FILES)]
    place.in_tasks(RemoveSums.run, tasks)


def _counts(summary: DataFrame, files: FileList) -> dict[str, int]:
    sums = summary.agg(F.sum("rows"), F.sum("indexes"), F.countDistinct("stream")).first()
    rows, data, streams = (one or 0 for one in sums or (0, 0, 0))
    return {"files": len(files), "rows": rows, "events": data, "streams": streams}
