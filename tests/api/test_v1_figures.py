"""What the console draws of the pipeline: hours and doors from the rollup, sizes of tables, runs and the last audit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from penstock.iceberg.files import arrow_schema
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import JobOutcome
from penstock.pipeline.run_records import KEPT, noted
from penstock.testing import RunningServer
from penstock.wire.lake_files import LakeFile
from tests.api.client import ask, publish
from tests.api.lake_rig import archive, opened, publish_record, server_with_lake


def write_rollup(server: RunningServer, lake: Path, lo: int, hi: int, rows: list[tuple[Any, ...]]) -> None:
    """A file of `rollup_hourly` for each day: (hours ago, stream, door, state, latency, count, bytes)."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    schema, written = arrow_schema("rollup_hourly"), opened(server, lake)
    by_day: dict[str, list[tuple[Any, ...]]] = {}
    for ago, *rest in rows:
        hour = now - timedelta(hours=ago)
        by_day.setdefault(f"{hour:%Y-%m-%d}", []).append((hour, *rest))
    files = [
        written.write(
            LakeFile(lo, hi, day, "rollup_hourly"),
            pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in of], schema),
        )
        for day, of in by_day.items()
    ]
    written.prepare("rollup_hourly", files)
    publish_record(server, written, "rollup")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with server_with_lake(tmp_path) as running:
        yield running


def test_hours_are_added_up_over_files_and_streams(server: RunningServer, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_rollup(
        server, lake, 0, 10, [(100, "/old", "", "accepted", None, 1000, 5), (1, "/a", "", "accepted", None, 3, 30)]
    )
    write_rollup(
        server, lake, 10, 20,
        [
            (1, "/b", "", "accepted", None, 2, 20), (1, "/a", "<b>", "sent", 4, 90, 0),
            (1, "/b", "<b>", "sent", 256, 10, 0), (1, "/a", "<b>", "acked", 8, 5, 0),
            (0, "/a", "sps", "expired", None, 7, 0),
        ],
    )  # fmt: skip
    answer = ask(server, "GET", "/v1/pipeline/hours", hours=24).json
    shown = {(one["hour_ms"] - answer["ms"] // 3_600_000 * 3_600_000, one["door"]): one for one in answer["hours"]}

    assert answer["lake"]
    assert shown.keys() == {(-3_600_000, ""), (-3_600_000, "<b>"), (0, "sps")}
    assert shown[-3_600_000, ""]["states"] == {"accepted": 5}
    assert shown[-3_600_000, ""]["bytes"] == 50
    assert shown[-3_600_000, "<b>"]["latency_ms"] == {"sent": [4, 4, 256], "acked": [8, 8, 8]}
    assert ask(server, "GET", "/v1/pipeline/hours", hours=200).json["hours"][0]["states"] == {"accepted": 1000}
    assert ask(server, "GET", "/v1/pipeline/hours", hours=0).status == 400


def test_tables_say_how_large_they_are(server: RunningServer, tmp_path: Path) -> None:
    for _ in range(3):
        publish(server, "/sized")
    done = archive(server, tmp_path / "lake")
    first = {one["table"]: one for one in ask(server, "GET", "/v1/pipeline/tables").json["tables"]}
    publish(server, "/sized")
    archive(server, tmp_path / "lake")
    second = {one["table"]: one for one in ask(server, "GET", "/v1/pipeline/tables").json["tables"]}

    assert first["events"]["rows"] == done
    assert first["deliveries"] == {"table": "deliveries", "files": 0, "rows": 0, "bytes": 0, "written_ms": None}
    assert second["events"]["rows"] > first["events"]["rows"]
    assert second["events"]["bytes"] > 0


def test_without_a_lake_it_says_so(shared_server: RunningServer) -> None:
    assert not ask(shared_server, "GET", "/v1/pipeline/hours").json["lake"]
    assert not ask(shared_server, "GET", "/v1/pipeline/tables").json["lake"]


def test_runs_and_the_last_audit_are_kept_at_the_server(shared_server: RunningServer) -> None:
    client = PipelineClient(shared_server.url, shared_server.admin_token)
    findings = [{"verdict": "pending", "check": "mailboxes", "words": f"<b>{number}</b>"} for number in range(250)]
    for number in range(KEPT + 5):
        with noted(client, "archive") as note:
            note.outcome = JobOutcome(f"archive: run {number}")
    with pytest.raises(ZeroDivisionError), noted(client, "rollup"):
        1 / 0  # noqa: B018
    with noted(client, "audit") as note:
        note.outcome = JobOutcome("audit: passes", {"verdict": "pass", "upto": 7, "counts": {}, "findings": findings})
    state = ask(shared_server, "GET", "/v1/pipeline").json

    assert [run["words"] for run in state["runs"]["archive"]] == [f"archive: run {n}" for n in range(KEPT + 4, 4, -1)]
    assert "division by zero" in state["runs"]["rollup"][0]["error"]
    assert (state["audit"]["verdict"], state["audit"]["upto"], state["audit"]["more"]) == ("pass", 7, 50)
    assert len(state["audit"]["findings"]) == 200


def test_a_job_goes_on_where_its_run_cannot_be_written_down() -> None:
    nobody = PipelineClient("http://127.0.0.1:9", "x", patience=0)
    with noted(nobody, "archive") as note:
        note.outcome = JobOutcome("done")


def test_the_plan_says_what_may_go_and_what_holds_it_back(shared_server: RunningServer, tmp_path: Path) -> None:
    plan = ask(shared_server, "GET", "/v1/retention/plan").json
    assert plan["allowed"] == plan["newest"]
    assert "log.keep alone" in plan["reason"]
    with server_with_lake(tmp_path, log_keep="7d") as server:
        publish(server, "/kept")
        archive(server, tmp_path / "lake")
        plan = ask(server, "GET", "/v1/retention/plan").json

        assert plan["keep"] == "7d"
        assert 0 < plan["allowed"] <= plan["newest"]
        assert json.dumps(plan["months"]) != "[]"
