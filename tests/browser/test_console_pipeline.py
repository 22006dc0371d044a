"""The view Pipeline in a real browser: freshness, runs, the last audit, and sums by hour and door."""

from __future__ import annotations

import time
from pathlib import Path

from playwright.sync_api import expect

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import JobOutcome
from penstock.pipeline.run_records import noted
from penstock.testing import RunningServer
from tests.api.client import publish
from tests.api.lake_rig import archive, server_with_lake
from tests.api.test_v1_figures import write_rollup
from tests.browser.console_page import Scheme, console, every_look, look

ODD = "<script>window.hit=1</script>"


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
    driver = {"seen_ms": int(time.time() * 1000), "started_ms": int(time.time() * 1000) - 60_000, "lake": str(lake),
              "spark": "4.3", "master": "local[2]", "process": "host/1/1", "jobs": {}}  # fmt: skip
    client.put("pipeline/driver", driver, expect=0)
    for ago in range(1, 40):
        write_rollup(
            server, lake, ago, ago + 1,
            [
                (ago, "/a", "", "accepted", None, 100 + ago, 10), (ago, "/a", "sps", "sent", 8 << ago % 4, 900, 0),
                (ago, "/a", "sps", "acked", 64, 800 - 7 * ago, 0), (ago, "/a", "webpush", "expired", None, ago % 5, 0),
            ],
        )  # fmt: skip


@every_look
def test_the_pipeline_is_shown_from_its_tables_to_its_verdicts(tmp_path: Path, width: int, scheme: Scheme) -> None:
    with server_with_lake(tmp_path, log_keep="30d") as server:
        work(server, tmp_path / "lake")
        with console(server, "#/pipeline", width=width, scheme=scheme) as page:
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


def test_no_pipeline_yet_is_explained(server: RunningServer) -> None:
    with console(server, "#/pipeline") as page:
        expect(page.get_by_text("No pipeline has run here")).to_be_visible()
        expect(page.get_by_text("does not read a lake")).to_be_visible()
