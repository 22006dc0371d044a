"""What jobs did lately, as records at the server, for whoever looks: the newest runs of each job, and the last audit.

    pipeline/runs/<job>    {"runs": [{"at_ms", "seconds", "words", "exit_code"} or {"at_ms", "seconds", "error"}, …]}
    pipeline/audit         {"at_ms", "seconds", "upto", "verdict", "counts", "findings"}

A job is not held up by them: where a record cannot be written, the next run writes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import JobOutcome

RUNS: Final = "pipeline/runs/"
AUDIT: Final = "pipeline/audit"
KEPT: Final = 20
"""Runs of one job that are kept; older ones are in the driver's log."""
WORDS: Final = 400
FINDINGS: Final = 200
"""Findings of an audit that its record holds; the job's own answer has all of them."""


class RunNote:
    """One run of a job that is under way."""

    def __init__(self) -> None:
        self.outcome: JobOutcome | None = None


@contextmanager
def noted(client: PipelineClient, job: str) -> Iterator[RunNote]:
    """Write down how the run inside the block went."""
    note, began = RunNote(), time.time()
    try:
        yield note
    except Exception as error:
        _keep(client, job, began, {"error": f"{type(error).__name__}: {error}"[:WORDS]})
        raise
    if note.outcome is not None:
        _keep(client, job, began, {"words": note.outcome.words[:WORDS], "exit_code": note.outcome.exit_code})
        if job == "audit":
            _keep_audit(client, began, note.outcome)


def _keep(client: PipelineClient, job: str, began: float, said: dict[str, Any]) -> None:
    run = {**_moment(began), **said}
    with suppress(PenstockError):
        kept = client.get(RUNS + job)
        client.put(RUNS + job, {"runs": [run, *kept.value.get("runs", [])][:KEPT]}, expect=kept.version)


def _keep_audit(client: PipelineClient, began: float, outcome: JobOutcome) -> None:
    found = list(outcome.data.get("findings", []))
    report = {**_moment(began), **outcome.data, "findings": found[:FINDINGS], "more": max(0, len(found) - FINDINGS)}
    with suppress(PenstockError):
        client.put(AUDIT, report, expect=client.get(AUDIT).version)


def _moment(began: float) -> dict[str, Any]:
    return {"at_ms": int(began * 1000), "seconds": round(time.time() - began, 2)}
