"""Typed tables on Spark: made in tasks, read as views, proved by the audit; in a folder and on S3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.iceberg.files import read_batches, write_file
from penstock.pipeline import audit_verdicts
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import TableChange, watermark
from penstock.pipeline.jobs import Workplace, archive, audit, compact, ledger, typed
from penstock.pipeline.lake_views import register_lake
from penstock.pipeline.loop import PERIOD_SECONDS, JobLoop
from penstock.testing import RunningServer
from penstock.wire.lake_files import LakeFile
from tests.spark.conftest import make_place
from tests.spark.filling import publish


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.long), "s3"])
def placed(request: pytest.FixtureRequest, spark: SparkSession, server: RunningServer, tmp_path: Path) -> Workplace:
    if request.param == "folder":
        return make_place(spark, server, tmp_path / "lake")
    request.getfixturevalue("s3")
    return make_place(spark, server, "s3://lake/typed")


def declare(client: PipelineClient, **columns: str) -> None:
    body = json.dumps({"streams": "/orders/*", "columns": columns}).encode()
    client.call("PUT", "/v1/lake/tables/orders", body=body)


def order(place: Workplace, *bodies: dict[str, Any]) -> None:
    """Orders in a file of `events` of their own."""
    publish(place.client, "/orders/eu", [json.dumps(one).encode() for one in bodies])
    archive.run(place, {})


def found(place: Workplace) -> list[tuple[str, str]]:
    return [(one.verdict, one.words) for one in audit_verdicts.check_typed(place, place.begins_after())]


def test_tasks_make_the_rows_and_views_and_the_audit_see_them(placed: Workplace) -> None:
    place, spark, client = placed, placed.spark, placed.client
    order(place, {"item": "tea", "select": 2}, {"item": 7})
    order(place, {"item": "jam", "select": 3})
    declare(client, item="string", select="int")  # a word of SQL's is a name as any other
    ledger.run(place, {})
    assert typed.run(place, {}).data["rows"] == {"orders": 2}
    declare(client, item="string", select="long", late="decimal(9,2)")
    order(place, {"item": "pot", "select": 2**40, "late": 0.25})
    ledger.run(place, {})
    typed.run(place, {})

    def rows() -> list[tuple[Any, ...]]:
        assert "orders" in register_lake(spark, client.url, client.token)
        return [
            tuple(row)
            for row in spark.sql("SELECT item, `select`, CAST(late AS STRING) FROM orders ORDER BY id").collect()
        ]

    expected = [("tea", 2, None), ("jam", 3, None), ("pot", 2**40, "0.25")]
    assert rows() == expected
    compact.run(place, {"all": ""})
    assert rows() == expected
    misfits = ("unknown(unreadable)", "1 entries do not fit table orders: `unreadable` says why")
    assert found(place) == [misfits]
    # When a row is there twice, or none is there any more, the audit says so
    key = client.typed_tables()[0].key
    [whole] = place.files(key)
    columns, store = place.columns(key), place.lake.store
    copy = write_file(
        store, LakeFile(0, 1, whole.file.day, key), read_batches(store, whole.location, columns=columns), columns
    )
    assert copy
    turn = place.turn(key)
    turn.replace([TableChange(key, [copy])])
    assert [verdict for verdict, _ in found(place)] == ["double"] * 3 + [misfits[0]]
    turn.replace([TableChange(key, [], [copy.location, whole.location])])
    turn.end()
    assert [verdict for verdict, _ in found(place)] == ["missing"] * 3 + [misfits[0]]


def test_a_whole_audit_covers_them(place: Workplace) -> None:
    order(place, {"item": "tea"}, {"item": 7})
    declare(place.client, item="string")
    archive.run(place, {})
    ledger.run(place, {})
    typed.run(place, {})

    outcome = audit.run(place, {})

    assert outcome.exit_code == 0, outcome.words
    assert "unknown(unreadable) typed: 1 entries do not fit table orders" in outcome.words
    assert "cannot be read" not in outcome.words


def test_a_long_history_is_made_in_rounds_that_let_the_archive_in(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(place, *({"item": str(number)} for number in range(40)))
    declare(place.client, item="string")
    newest = place.client.newest()
    monkeypatch.setattr(typed, "TURN_IDS", newest // 3)
    loop = JobLoop(place, dict.fromkeys(("archive", "ledger", "typed"), PERIOD_SECONDS), clock=lambda: 0.0)
    key, reached = place.client.typed_tables()[0].key, []

    while not reached or reached[-1] < watermark(place.client, "ledger"):
        loop.round(newest)  # no time goes by, and nothing is new: only what has more to do runs again
        reached.append(watermark(place.client, key))

    assert reached == sorted(set(reached))
    assert (reached[0], reached[-1] >= newest, len(reached) >= 3) == (newest // 3, True, True)
    assert loop.state()["jobs"]["typed"]["words"].endswith(f"up to id {reached[-1]:,} of {reached[-1]:,}")
