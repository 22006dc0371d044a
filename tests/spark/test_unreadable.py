"""One entry that cannot be read, one batch that comes again, one file that is gone: no job stops or lies for it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace, archive, audit, compact, erase, ledger, rollup
from penstock.pipeline.staging import rows_of
from penstock.pipeline.tables import Lake, LakeHole
from penstock.testing import RunningServer
from penstock.wire.lake import LakeFile
from tests.api.client import Tail, ask, publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.test_system_streams import grants_alone_decide
from tests.spark.conftest import make_place
from tests.spark.filling import archived

GARBAGE = (b"", b"garbage", b"{}\n", b'{"node":"n","epoch":1,"sequence":0,"rows":[[1]]}\n', b"[" * 100_000)


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Workplace]]:
    """A server of the time when others could write into the streams of the system, with its lake."""
    folder = tmp_path_factory.mktemp("unreadable")
    with start_sabotaged(folder / "data", grants_alone_decide, lake_url=folder / "lake") as server:
        yield server, make_place(spark, server, folder / "lake")


World = tuple[RunningServer, Workplace]


def work(place: Workplace) -> None:
    for job in (archive, ledger, rollup, erase):
        job.run(place, {})


def test_entries_that_cannot_be_read_are_named_and_stop_nothing(world: World) -> None:
    server, place = world
    odd = json.dumps({"node": "n", "epoch": "many", "sequence": "-"})
    forged = json.dumps({"node": "n", "epoch": "7", "sequence": "1000"})
    for number, body in enumerate(GARBAGE[1:]):
        assert publish(server, "/_ledger", body, Event_Attributes=(odd, forged)[number % 2]).status == 201
    assert publish(server, "/_erased", b'{"ids":"all"}').status == 201
    assert publish(server, "/_presence", b'{"uid":"1","hid":"a","time":"soon"}').status == 201
    secret = publish(server, "/secrets", b"secret").json["id"]
    assert ask(server, "POST", "/v1/log/erase", json.dumps({"ids": [secret]}).encode()).status == 200

    work(place)

    newest = watermark(place.client, "events")
    assert [watermark(place.client, name) for name in ("ledger", "rollup", "erase")] == [newest] * 3
    rows = archived(place.lake.root, "unreadable").to_pylist()
    assert Counter(row["stream"] for row in rows) == {"/_ledger": len(GARBAGE) - 1, "/_erased": 1}
    assert all(row["reason"] for row in rows)
    outcome = audit.run(place, {})
    named = [one for one in outcome.data["findings"] if one["verdict"] == "unknown(unreadable)"]
    assert (outcome.exit_code, len(named)) == (0, len(rows)), outcome.words
    assert f"entry {rows[0]['entry']} of /_ledger" in outcome.words


def test_sabotage_a_job_that_believes_every_entry_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = world

    def believing(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for id, body in zip(piece.column("id").to_pylist(), piece.column("body").to_pylist(), strict=True):
                yield ledger._arrow(ledger._rows(id, body))

    publish(server, "/_ledger", b"garbage")
    archive.run(place, {})
    before = watermark(place.client, "ledger")
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "_decode", believing)
        with pytest.raises(Exception, match="Expecting value"):
            ledger.run(place, {})

    assert watermark(place.client, "ledger") == before
    work(place)
    assert watermark(place.client, "ledger") == watermark(place.client, "events")


def sums(place: Workplace) -> Counter[str]:
    """How many deliveries there were, by the sums and by the records."""
    found: Counter[str] = Counter()
    for row in archived(place.lake.root, "rollup_hourly").to_pylist():
        found[row["state"]] += row["count"] if row["state"] == "sent" else 0
    found["records"] = archived(place.lake.root, "ledger")["state"].to_pylist().count("sent")
    found["attempts"] = sum(row["attempts"] or 0 for row in archived(place.lake.root, "deliveries").to_pylist())
    return found


def last_batch(place: Workplace) -> tuple[bytes, str]:
    rows = archived(place.lake.root).filter(pa.compute.field("stream") == "/_ledger").to_pylist()
    return next((row["body"], row["attributes"]) for row in reversed(rows) if b'"sent"' in row["body"])


@pytest.mark.parametrize("forgets", [False, True], ids=["honest", "sabotage: each turn begins anew"])
def test_a_batch_that_comes_again_in_a_later_turn_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    server, place = world
    for number in range(3):
        publish(server, f"/again/{forgets}", b"%d" % number)
    with Tail(server, f"/again/{forgets}", after=0) as tail:
        assert len(list(tail.lines(3))) == 3
    ask(server, "POST", "/v1/audit/cut")
    work(place)
    before = sums(place)
    body, attributes = last_batch(place)
    assert publish(server, "/_ledger", body, Event_Attributes=attributes).status == 201
    if forgets:
        monkeypatch.setattr(ledger, "_heads", lambda place, turn: {})

    work(place)

    assert before["sent"] >= 3
    assert (sums(place) == before) is not forgets
    assert forgets or audit.run(place, {}).exit_code == 0


def test_no_file_is_not_taken_for_no_rows(world: World, tmp_path: Path) -> None:
    server, place = world
    publish(server, "/orders")
    archive.run(place, {})
    newest = place.lake.path(place.lake.files("events")[-1])
    kept = newest.rename(tmp_path / "kept.parquet")
    before = watermark(place.client, "ledger")

    with pytest.raises(LakeHole, match="no file of events"):
        ledger.run(place, {})
    assert watermark(place.client, "ledger") == before
    kept.rename(newest)
    ledger.run(place, {})
    newest = place.lake.path(place.lake.files("ledger")[-1])
    kept = newest.rename(tmp_path / "kept.parquet")

    with pytest.raises(LakeHole, match="no file of ledger"):
        rollup.run(place, {})
    kept.rename(newest)
    rollup.run(place, {})
    assert watermark(place.client, "rollup") == watermark(place.client, "ledger")


def test_files_without_rows_are_put_together_like_others(world: World) -> None:
    server, place = world
    compact.run(place, {"all": ""})
    for _ in range(2):
        publish(server, "/orders")
        work(place)
    last = place.lake.files("ledger")[-2:]
    assert {rows_of(place.lake.path(file)) for file in last} == {0}, "nothing was recorded meanwhile"

    compact.run(place, {"all": ""})

    assert place.lake.covering("ledger", 0, watermark(place.client, "ledger"))
    hours = {(file.day, compact._hour(place.lake, file)) for file in place.lake.files("ledger")}
    assert len(place.lake.files("ledger")) == len(hours)  # two, when an hour has ended meanwhile


def test_an_audit_says_times_of_the_world_and_not_of_the_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = world
    began = datetime.now(UTC).replace(microsecond=0)
    server.kill()
    server.restart()

    assert began <= came_back(place, monkeypatch) <= datetime.now(UTC)
    monkeypatch.setattr(audit, "_utc", lambda micros: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.localtime(micros / 1e6)))
    assert not began <= came_back(place, monkeypatch) <= datetime.now(UTC), "the sabotage: times of the place"


def came_back(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> datetime:
    """When the server that was killed came back, as an audit in New York says it."""
    try:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", "America/New_York")
            time.tzset()
            outcome = audit.run(place, {})
    finally:
        time.tzset()
    [words] = [one["words"] for one in outcome.data["findings"] if "did not close epoch" in one["words"]]
    return datetime.fromisoformat(words.split(" and ")[1].split()[0])


def test_a_late_record_opens_the_files_that_it_speaks_of_and_no_other(spark: SparkSession) -> None:
    ids = spark.createDataFrame([(5,), (6,), (99_950,), (200_000,)], "id BIGINT")

    assert rollup.numbers_of(ids, list(range(100, 100_001, 100))) == {0, 999}


@pytest.mark.parametrize("reads_all", [False, True], ids=["honest", "sabotage: all files are read"])
def test_a_rollup_reads_no_file_that_no_record_speaks_of(
    world: World, monkeypatch: pytest.MonkeyPatch, reads_all: bool
) -> None:
    server, place = world
    for _ in range(3):
        publish(server, "/orders")
        archive.run(place, {})
    files = place.lake.files("events")
    late = place.spark.createDataFrame([(files[0].hi, files[-1].hi)], "first BIGINT, last BIGINT")
    if reads_all:
        monkeypatch.setattr(rollup, "numbers_of", lambda ids, ends: set(range(len(ends))))

    read = rollup._entries_of(place, late, files[-1].hi).inputFiles()

    assert len(files) > 2
    assert len(read) == (len(files) if reads_all else 2)


def test_sabotage_a_lake_that_takes_no_file_for_no_rows(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of this module: with what it does rows are lost."""

    def overlapping(lake: Lake, table: str, after: int, upto: int) -> list[LakeFile]:
        return [file for file in lake.files(table) if file.overlaps(after, upto)]

    monkeypatch.setattr(Lake, "covering", overlapping)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_no_file_is_not_taken_for_no_rows(world, tmp_path)
