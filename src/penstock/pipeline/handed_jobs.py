"""Jobs that commands hand to the running driver: a record each, `pipeline/tasks/<id>`.

{"state": "asked", "job": …, "options": …}                 put by the command, which wakes the driver
{"state": "running", "by": …, …}                           the driver's process has it; no other can go on with it
{"state": "done", "words": …, "data": …, "exit_code": …}   or "failed" with code, message, remedy
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.table_lease import own_name

PREFIX: Final = "pipeline/tasks/"
LOOK_SECONDS: Final = 0.2
ANSWER_BYTES: Final = 200_000
"""Bytes of a job's answer as JSON: a record must hold it. Over it: the data are left out, and the words say so."""

Perform = Callable[[Workplace, str, Mapping[str, str]], JobOutcome]


class TaskFailed(PenstockError):
    """The driver did not do the job."""

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.code, self.remedy = code, remedy


# ── the driver's side ──────────────────────────────────────────────────────────────────────────


def run_all(place: Workplace, perform: Perform) -> None:
    """Run the jobs that were handed in, in order."""
    for key, kept in sorted(place.client.list(PREFIX).items(), key=lambda one: one[1].version):
        if kept.value.get("state") == "asked":
            _run(place, perform, key, kept.value, kept.version)


def _run(place: Workplace, perform: Perform, key: str, task: dict[str, Any], version: int) -> None:
    try:
        version = place.client.put(key, {**task, "state": "running", "by": own_name()}, expect=version).version
        place.client.put(key, {**task, **_answer(place, perform, task)}, expect=version)
    except RecordChanged:
        return  # the command has given up, or another driver was first


def _answer(place: Workplace, perform: Perform, task: dict[str, Any]) -> dict[str, Any]:
    try:
        outcome = perform(place, task["job"], task["options"])
    except PenstockError as error:
        return {"state": "failed", "code": error.code, "message": str(error)[:2000], "remedy": error.remedy}
    except Exception as error:  # noqa: BLE001 - the command that waits must be told
        said = f"{type(error).__name__}: {error}"[:2000]
        return {"state": "failed", "code": "job_failed", "message": said, "remedy": "Look at the driver's log."}
    answer = {"state": "done", "words": outcome.words, "data": outcome.data, "exit_code": outcome.exit_code}
    if len(json.dumps(answer)) > ANSWER_BYTES:
        answer |= {"data": {}, "words": outcome.words[: ANSWER_BYTES // 4] + "\n(cut: run it with --own for all of it)"}
    return answer


# ── the command's side ─────────────────────────────────────────────────────────────────────────


def warm_driver(client: PipelineClient, lake: str) -> dict[str, Any] | None:
    """What `/v1/pipeline` says of the driver, if one works on this lake."""
    driver = client.call("GET", "/v1/pipeline")["driver"]
    return driver if driver and driver["alive"] and driver["lake"] == lake else None


def hand_over(client: PipelineClient, job: str, options: Mapping[str, str]) -> JobOutcome:
    """Let the running driver do *job*, and wait for the outcome."""
    key = PREFIX + uuid.uuid4().hex
    client.put(key, {"state": "asked", "job": job, "options": dict(options)}, expect=0)
    try:
        return _wait(client, key)
    finally:
        client.delete(key)


def is_forsaken(task: Mapping[str, Any], driver: Mapping[str, Any] | None) -> bool:
    """Whether nobody is going to answer: there is no driver, or not the one that has begun the job."""
    if not driver or not driver["alive"]:
        return True
    return task.get("state") == "running" and task.get("by", "") != driver.get("process", "")


def _wait(client: PipelineClient, key: str) -> JobOutcome:
    while True:
        value = client.get(key).value
        if value.get("state") == "done":
            return JobOutcome(value["words"], value["data"], value["exit_code"])
        if value.get("state") == "failed":
            raise TaskFailed(value["code"], value["message"], value["remedy"])
        if is_forsaken(value, client.call("GET", "/v1/pipeline")["driver"]):
            raise TaskFailed("driver_gone", "the driver ended before the job did", "Run the job again.")
        time.sleep(LOOK_SECONDS)
