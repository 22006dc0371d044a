"""A small turn of every job that runs every few seconds is done by the driver itself, on either store. No JVM."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from penstock.iceberg.files import read_batches
from penstock.pipeline import merging
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace, archive, ledger, rollup
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.api.client import Tail, ask, publish
from tests.pipeline.by_hand import NO_SPARK

_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("small") / "data") as started:
        yield started


@pytest.fixture
def place(server: RunningServer, lake: Lake) -> Iterator[Workplace]:
    client = PipelineClient(server.url, server.admin_token)
    bind(client, lake)
    yield Workplace(NO_SPARK, client, lake)
    for key in client.list("lake/"):
        client.delete(key)


def deliver(server: RunningServer, stream: str, there: int) -> None:
    """Publish two entries, and let a reader have all *there* are then."""
    for _ in range(2):
        publish(server, stream, b"12345")
    with Tail(server, stream, after=0, consumer="alice") as tail:
        assert len(list(tail.lines(there))) == there
    ask(server, "POST", "/v1/audit/cut")


def rows(place: Workplace, table: str) -> list[dict[str, Any]]:
    pieces = [piece for one in place.files(table) for piece in read_batches(place.lake.store, one.location)]
    return pa.Table.from_batches(pieces).to_pylist()


@pytest.mark.parametrize("looks", [merging.SURELY_BYTES, 0], ids=["small files", "keys compared"])
def test_a_small_turn_needs_no_spark(
    place: Workplace, server: RunningServer, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    monkeypatch.setattr(merging, "SURELY_BYTES", looks)
    stream = f"/small/{next(_numbers)}"
    for there in (2, 4):  # the same reader gets the first entries again
        deliver(server, stream, there)
        for job in (archive, ledger, rollup):
            job.run(place, {})

    newest = place.client.newest()
    assert [watermark(place.client, name) for name in ("events", "ledger", "rollup")] == [newest] * 3
    sent = [row for row in rows(place, "deliveries") if row["stream"] == stream]
    assert len({(row["first"], row["last"]) for row in sent}) == len(sent)
    assert sum(row["attempts"] for row in sent) == len(
        [row for row in rows(place, "ledger") if row["stream"] == stream and row["state"] == "sent"]
    )
    sums = {(row["state"], row["latency_ms"]): row for row in rows(place, "rollup_hourly") if row["stream"] == stream}
    assert sum(row["count"] for (state, _), row in sums.items() if state == "sent") == 6
    assert (sums["accepted", None]["count"], sums["accepted", None]["bytes"]) == (4, 20)
    assert [row["recipient"] for row in rows(place, "activity") if row["recipient"] == "alice"] == ["alice"]


def test_sabotage_a_merge_that_is_always_dealt_out_needs_spark(
    place: Workplace, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "HERE_ROWS", 0)
    deliver(server, f"/dealt/{next(_numbers)}", 2)
    archive.run(place, {})

    with pytest.raises(AttributeError):
        ledger.run(place, {})
