"""Large records of the pipeline, listed by many at once, beside others who ask for something small."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.api.v1 import pipeline
from penstock.limits import PAGE_BYTES, POSITION_BYTES, RECORD_BYTES
from penstock.pipeline.client import PipelineClient
from penstock.testing import RunningServer
from tests.api.client import ask
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

RECORDS = "/v1/pipeline/records"
COUNT = 40


def believe_that_records_are_small() -> None:
    """The sabotage: neither what is kept nor what is shown is measured."""
    pipeline.POSITION_BYTES = pipeline.PAGE_BYTES = 2**40


def keep(server: RunningServer, number: int) -> None:
    value = json.dumps({"x": "y" * (RECORD_BYTES - 100)}).encode()
    assert ask(server, "PUT", f"{RECORDS}/pipeline/large/{number:03}", value, expect=0).status == 200


@pytest.mark.parametrize("sabotage", [None, believe_that_records_are_small])
def test_large_records_are_kept_for_the_admin_alone_and_listed_in_pages(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, Hostile(server, "/m", "export") as mallory:
        for number in range(COUNT):
            keep(server, number)
        with beside(server) as bystander, ThreadPoolExecutor(8) as pool:
            large = json.dumps({"x": "y" * POSITION_BYTES}).encode()
            kept = mallory.ask("PUT", f"{RECORDS}/pipeline/consumers/mine", large, expect=0).status
            pages = list(pool.map(lambda _: mallory.ask("GET", RECORDS, prefix="pipeline/large/"), range(24)))
        if not sabotage:
            bystander.noticed_nothing()

        assert kept == (200 if sabotage else 413)
        assert (max(len(page.body) for page in pages) > 2 * PAGE_BYTES) == bool(sabotage)
        shown = [page.json["more"] for page in pages if page.status == 200]  # eight whole lists may be too much at once
        assert shown == ([False] * len(shown) if sabotage else [True] * len(pages))
        assert mallory.ask("PUT", f"{RECORDS}/pipeline/consumers/other", b'{"after":1}', expect=0).status == 200
        assert len(PipelineClient(server.url, server.admin_token).list("pipeline/large/")) == COUNT
