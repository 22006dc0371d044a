"""The view Pipeline in a real browser: freshness, runs, the last audit, and sums by hour and door."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import JobOutcome
from penstock.pipeline.run_records import noted
from penstock.testing import RunningServer, wait_until
from tests.api.client import publish
from tests.api.lake_rig import archive, record, server_with_lake
from tests.api.test_v1_figures import write_rollup
from tests.browser.console_page import Scheme, console, every_look, look
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.test_lake_sql import ENDLESS, duckdb_is_not_installed, processes

ODD = "<script>window.hit=1</script>"
ANSWERED_MS = 60_000  # DuckDB's process starts for each question


def work(server: RunningServer, lake: Path) -> None:
    """What a driver reports, and the sums that it has written."""
    client = PipelineClient(server.url, server.admin_token)
    for _ in range(5):
        publish(server, "/orders/eu")
    archive(server, lake)
    publish(server, "/orders/eu")
    for job, words in (("archive", "archive: 5 rows"), ("ledger", "ledger: up to date"), ("rollup", f"rollup: {ODD}")):
        with noted(client, job) as note:
            note.outcome = JobOutcome(words)
    findings = [
        {"verdict": "pending", "check": "mailboxes", "words": "3 items of 2 recipients wait"},
        {"verdict": "unknown(crash)", "check": "ledger", "words": f"node n1 {ODD} did not close epoch 3"},
    ]
    data = {"upto": 7, "verdict": "pass", "counts": {"rows": 7, "streams": 1}, "findings": findings}
    with noted(client, "audit") as note:
        note.outcome = JobOutcome("audit up to id 7: passes", data)
    rows = [
        row
        for ago in range(1, 40)
        for row in (
            (ago, "/a", "", "accepted", None, 100 + ago, 10), (ago, "/a", "sps", "sent", 8 << ago % 4, 900, 0),
            (ago, "/a", "sps", "acked", 64, 800 - 7 * ago, 0), (ago, "/a", "webpush", "expired", None, ago % 5, 0),
        )
    ]  # fmt: skip
    write_rollup(server, lake, 1, 40, rows)


def be_heard_of(server: RunningServer, lake: str) -> None:
    """What a driver says every few seconds."""
    now_ms = int(time.time() * 1000)
    said = {"seen_ms": now_ms, "started_ms": now_ms - 60_000, "lake": lake, "spark": "4.3", "master": "local[2]",
            "process": "host/1/1", "jobs": {}}  # fmt: skip
    record(server, "pipeline/driver", said)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server beside whose lake a pipeline has worked."""
    folder = tmp_path_factory.mktemp("pipeline")
    with server_with_lake(folder, log_keep="30d") as server:
        work(server, folder / "lake")
        yield server


@every_look
def test_the_pipeline_is_shown_from_its_tables_to_its_verdicts(
    worked: RunningServer, width: int, scheme: Scheme
) -> None:
    be_heard_of(worked, "/srv/lake")
    with console(worked, "#/pipeline", width=width, scheme=scheme) as page:
        expect(page.get_by_label("Driver", exact=True)).to_contain_text("works")
        tables = page.get_by_label("Tables").first
        expect(tables.get_by_role("row").filter(has_text="events")).to_contain_text("behind")
        expect(page.get_by_label("Last audit")).to_contain_text("passes")
        expect(page.get_by_label("Last audit")).to_contain_text(ODD)
        expect(page.get_by_label("Last runs")).to_contain_text("archive: 5 rows")
        expect(page.get_by_label("Retention")).to_contain_text("30d")
        expect(page.get_by_role("figure")).to_have_count(4)
        expect(page.locator(".plot canvas")).to_have_count(4)
        expect(page.get_by_role("figure").filter(has_text="Deliveries")).to_contain_text("35,100")
        look(page, "pipeline", width, scheme)
        page.get_by_label("Door").select_option("webpush")
        expect(page.get_by_role("figure").filter(has_text="Deliveries")).not_to_contain_text("35,100")
        page.get_by_label("Span").select_option("24")
        expect(page.get_by_role("figure").filter(has_text="Events published")).to_contain_text("in all")
        assert page.evaluate("window.hit") is None


def test_no_pipeline_yet_is_explained(shared_server: RunningServer) -> None:
    with console(shared_server, "#/pipeline") as page:
        expect(page.get_by_text("No pipeline has run here")).to_be_visible()
        expect(page.get_by_text("does not read a lake")).to_be_visible()


# ── asked in SQL ──────────────────────────────────────────────────────────────────────────────────


@every_look
def test_the_lake_is_asked_in_sql(worked: RunningServer, width: int, scheme: Scheme) -> None:
    with console(worked, "#/pipeline", width=width, scheme=scheme) as page:
        box = page.get_by_label("Ask the lake")
        answer = box.get_by_role("table", name="Answer")
        # One of the examples is asked by a click
        expect(box.get_by_role("button")).to_have_count(4)
        box.get_by_role("button", name="Which streams are the busiest?").click()
        expect(answer.get_by_role("row").nth(1)).to_contain_text("/orders/eu", timeout=ANSWERED_MS)
        expect(answer.get_by_role("columnheader").nth(1)).to_have_text("events")
        expect(answer.get_by_role("row").nth(1).get_by_role("cell").nth(1)).to_have_text("5")
        look(page, "pipeline-sql", width, scheme)


def test_ones_own_question_is_asked_by_keyboard_and_what_is_refused_says_why(worked: RunningServer) -> None:
    with console(worked, "#/pipeline", caused="400") as page:
        box = page.get_by_label("Ask the lake")
        answer = box.get_by_role("table", name="Answer")
        # Values are text, whatever they look like
        asked = f"SELECT '{ODD}' AS odd, NULL AS nothing, [1, 2] AS list, 1.50 AS price, NULL::INT AS number"
        page.get_by_label("One SELECT").fill(asked)
        page.get_by_label("One SELECT").press("Control+Enter")
        expect(answer.get_by_role("row").nth(1)).to_have_text(f"{ODD}NULL[1,2]1.50NULL", timeout=ANSWERED_MS)
        # Numbers stand right, whether they came as such, as text, or not at all
        for place, side in ((0, "start"), (2, "start"), (3, "right"), (4, "right")):
            expect(answer.get_by_role("row").nth(1).get_by_role("cell").nth(place)).to_have_css("text-align", side)
        page.get_by_label("One SELECT").fill("SELECT * FROM read_text('/etc/passwd')")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(box.get_by_role("alert")).to_contain_text("sql_refused", timeout=ANSWERED_MS)
        expect(box.get_by_role("alert")).to_contain_text("Ask one SELECT about the lake's tables")
        assert page.evaluate("window.hit") is None


def test_a_question_is_stopped_and_ends_at_the_server(worked: RunningServer) -> None:
    with console(worked, "#/pipeline") as page:
        page.get_by_label("One SELECT").fill(ENDLESS)
        page.get_by_role("button", name="Ask", exact=True).click()
        wait_until(lambda: processes(worked) == 1)
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.get_by_text("Stopped.")).to_be_visible()
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()
        wait_until(lambda: processes(worked) == 0)


def test_without_duckdb_the_page_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    started = start_sabotaged(tmp_path / "data", duckdb_is_not_installed, lake_url=tmp_path / "lake")
    with started as server, console(server, "#/pipeline") as page:
        expect(page.get_by_text("DuckDB is not installed beside the server")).to_be_visible()
        expect(page.get_by_text("./penstock install sql")).to_be_visible()
