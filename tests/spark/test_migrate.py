"""A lake that the version before Iceberg has made is taken over, row by row, and everybody reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.iceberg.sql import ask as ask_sql
from penstock.pipeline import old_lake
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_COMMIT, BEFORE_COMMIT, Faults
from penstock.pipeline.jobs import Workplace, archive, audit, compact, erase, ledger, rollup, typed
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.old_lake import FOLDED, migrate
from penstock.testing import RunningServer, start_server
from penstock.wire.lake_files import RECORDS
from penstock.wire.ledger import RANKS
from tests.api.client import ask
from tests.pipeline.by_hand import Crash, CrashAt, declare_orders, orders_in
from tests.pipeline.earlier import hashes, old_rows, unpack
from tests.pipeline.test_catalog import READERS, read_by_all
from tests.pipeline.test_killed_jobs import left_over
from tests.spark.filling import QUICK_JAVA, archived
from tests.spark.killed_child import run_killed
from tests.spark.test_standalone import cluster
from tests.spark.test_submit import ELSEWHERE, make_python

__all__ = ["cluster"]

WHAT = ("door", "recipient", "stream", "first", "last", "key", "month", "number")
Rows = list[dict[str, Any]]


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[RunningServer, Path, str]]:
    """A server of today on the old data, the old lake, and where the new one is to be."""
    old = unpack(tmp_path)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        new = str(tmp_path / "new")
        if request.param == "s3":
            request.getfixturevalue("s3")
            new = "s3://lake/migrated"
        with start_server(tmp_path / "data", lake_url=new) as server:
            yield server, old, new


def place_of(spark: SparkSession, server: RunningServer, new: str, faults: Faults | None = None) -> Workplace:
    client = PipelineClient(server.url, server.admin_token)
    return Workplace(spark, client, open_lake(new), faults or Faults())


def in_no_order(rows: Rows) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


def folded_states(rows: Rows) -> dict[tuple[Any, ...], tuple[str, int]]:
    """What became of each delivery, and how often it was sent, in plain Python."""
    found: dict[tuple[Any, ...], tuple[str, int]] = {}
    for row in sorted(rows, key=lambda one: (RANKS[one["state"]], -one["last_time"].timestamp())):
        key = tuple(row[name] for name in WHAT)
        state, attempts = found.get(key, (row["state"], 0))
        found[key] = state, attempts + row["attempts"]
    return found


def summed(rows: Rows, keys: tuple[str, ...], value: str) -> Counter[tuple[Any, ...]]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sums[tuple(row[name] for name in keys)] += row[value]
    return sums


def differences(client: PipelineClient, old: Path, new: str) -> list[str]:
    """The tables of the new lake that are not what the old lake's rows come to."""
    now = {table: archived(client, new, table).to_pylist() for tables in RECORDS.values() for table in tables}
    was = {table: old_rows(old, table) for table in now}
    wrong = [
        table for table in ("events", "ledger", "unreadable") if in_no_order(now[table]) != in_no_order(was[table])
    ]
    states = folded_states(now["deliveries"])
    if states != folded_states(was["deliveries"]) or len(states) != len(now["deliveries"]):
        wrong.append("deliveries")
    for table, value in (("rollup_hourly", "count"), ("rollup_hourly", "bytes"), ("activity", "records")):
        keys = FOLDED[table].keys
        sums = summed(now[table], keys, value)
        if sums != summed(was[table], keys, value) or len(sums) != len(now[table]):
            wrong.append(f"{table}.{value}")
    return wrong


@pytest.mark.parametrize("served", ["folder", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_an_old_lake_is_taken_over_wherever_it_was_cut_off_and_goes_on(
    spark: SparkSession, served: tuple[RunningServer, Path, str], tmp_path: Path
) -> None:
    server, old, new = served
    client, before = PipelineClient(server.url, server.admin_token), hashes(old)
    assert len(old_rows(old, "deliveries")) > len(folded_states(old_rows(old, "deliveries"))) > 0
    # Given runs that are cut off: before `events` is moved, and after `ledger` is
    for point, passed in ((BEFORE_COMMIT, 0), (AFTER_COMMIT, 2)):
        with pytest.raises(Crash):
            migrate(place_of(spark, server, new, CrashAt(point, passed)), old)

    migrate(place_of(spark, server, new), old)

    # Then every row is there, and the old lake is as it was
    assert differences(client, old, new) == []
    assert hashes(old) == before
    # and all readers have it: what was trimmed from the log comes from the files of before
    expected = sorted((row["id"], row["body"]) for row in old_rows(old, "events"))
    if new.startswith("/"):
        assert read_by_all(server, tmp_path) == dict.fromkeys(READERS, expected)
    orders = ask(server, "GET", "/v1/read", stream="/orders", **{"from": 0}).json["entries"]
    assert [one["index"] for one in orders] == [1, 2, 3, 4, 5]  # the first one was erased
    # and the jobs go on
    place = place_of(spark, server, new)
    bind(client, place.lake)
    for job in (archive, ledger, rollup):
        job.run(place, {})
    ids = archived(client, new)["id"].to_pylist()
    assert len(ids) > len(expected)
    answer = ask_sql(new, client.get("lake/events").value["tables"], "SELECT id FROM events ORDER BY id")
    assert [row["id"] for row in answer.rows()] == ids  # by field ids and by names, in one table
    compact.run(place, {"all": ""})
    assert archived(client, new)["id"].to_pylist() == ids
    findings = audit.run(place, {}).data["findings"]
    assert [one for one in findings if one["check"] in ("files", "events", "heads", "ledger")] == []
    # and a typed table gets the history, and loses what is erased
    key = declare_orders(client, "/orders")
    misfits = [row["id"] for row in archived(client, new).to_pylist() if is_order(row)]
    tea = client.call("POST", "/v1/publish", {"stream": "/orders"}, b'{"item": "tea"}')["id"]
    for job in (archive, ledger, typed):
        job.run(place, {})
    assert orders_in(client, place.lake, key) == ([(tea, "tea")], misfits)
    assert erase.run(place, {"ids": f"{misfits[0]},{tea}"}).data["typed"] == 1
    assert orders_in(client, place.lake, key)[0] == []


def is_order(row: dict[str, Any]) -> bool:
    return row["stream"] == "/orders" and row["kind"] == "data"


@pytest.mark.parametrize("served", ["folder"], indirect=True)
def test_sabotage_rows_that_are_not_folded_are_there_twice(
    spark: SparkSession, served: tuple[RunningServer, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, old, new = served
    loose = {name: replace(table, merge=lambda rows: rows) for name, table in FOLDED.items()}
    monkeypatch.setattr(old_lake, "FOLDED", loose)
    migrate(place_of(spark, server, new), old)

    assert "deliveries" in differences(PipelineClient(server.url, server.admin_token), old, new)


@pytest.mark.long
@pytest.mark.parametrize("served", ["folder"], indirect=True)
def test_a_takeover_whose_process_is_killed_with_its_jvm_is_brought_to_its_end(
    spark: SparkSession, served: tuple[RunningServer, Path, str]
) -> None:
    server, old, new = served
    client, before = PipelineClient(server.url, server.admin_token), hashes(old)
    # Each record has eight points. Before the commit of `ledger`; then after it, when `events` is done already
    for number in (10, 3):
        assert run_killed(client, new, number, "migrate", str(old)) == -signal.SIGKILL

    migrate(place_of(spark, server, new), old)

    assert differences(client, old, new) == []
    assert hashes(old) == before
    place = place_of(spark, server, new)
    bind(client, place.lake)
    compact.run(place, {})
    assert left_over(client, new) == set()
    assert differences(client, old, new) == []


@pytest.mark.long
@pytest.mark.parametrize("served", ["folder"], indirect=True)
def test_a_cluster_whose_workers_have_nothing_of_ours_takes_it_over(
    served: tuple[RunningServer, Path, str], tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    server, old, new = served
    client, events = PipelineClient(server.url, server.admin_token), tmp_path / "spark-events"
    events.mkdir()
    python = make_python(tmp_path / "worker", ELSEWHERE)
    # Given a cluster that only Spark's own settings name
    defaults = f"spark.master {cluster[0]}\nspark.eventLog.enabled true\nspark.eventLog.compress false\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    environment = {**os.environ, **QUICK_JAVA, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": str(python)}
    command = [sys.executable, "-m", "penstock", "pipeline", "migrate", str(old), new, "--url", server.url]
    command += ["--token", server.admin_token, "--conf", f"spark.eventLog.dir={events}"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=200)

    assert done.returncode == 0, done.stderr[-3000:]
    assert differences(client, old, new) == []
    told = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert f'"spark.master":"{cluster[0]}"' in told
    assert '"Event":"SparkListenerTaskEnd"' in told
