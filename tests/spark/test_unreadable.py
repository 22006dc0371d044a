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

from penstock.iceberg.files import PlannedFile, arrow_schema, write_file
from penstock.pipeline import audit_verdicts, ledger_rows
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace, archive, audit, erase, ledger, rollup
from penstock.pipeline.lake import Lake, LakeHole, covering, open_lake
from penstock.testing import RunningServer
from penstock.wire.lake_files import LakeFile
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
    assert [watermark(place.client, name) for name in ("ledger", "rollup")] == [newest] * 2
    assert erase.erased_upto(place.client) == newest
    rows = archived(place.client, place.lake.place, "unreadable").to_pylist()
    assert Counter(row["stream"] for row in rows) == {"/_ledger": len(GARBAGE) - 1, "/_erased": 1}
    assert all(row["reason"] for row in rows)
    outcome = audit.run(place, {})
    named = [one for one in outcome.data["findings"] if one["verdict"] == "unknown(unreadable)"]
    assert (outcome.exit_code, len(named)) == (0, len(rows)), outcome.words
    assert f"entry {rows[0]['entry']} of /_ledger" in outcome.words


def test_sabotage_a_job_that_believes_every_entry_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = world

    def believing(
        entries: Iterator[pa.RecordBatch], unreadable: list[tuple[int, str, str, int]]
    ) -> Iterator[pa.RecordBatch]:
        made = ledger_rows.BatchRows()
        for piece in entries:
            for id, body in zip(piece.column("id").to_pylist(), piece.column("body").to_pylist(), strict=True):
                made.add(id, body)
        yield made.arrow()

    publish(server, "/_ledger", b"garbage")
    archive.run(place, {})
    before = watermark(place.client, "ledger")
    with monkeypatch.context() as patched:
        patched.setattr(ledger_rows, "decode", believing)
        with pytest.raises(Exception, match="Expecting value"):
            ledger.run(place, {})

    assert watermark(place.client, "ledger") == before
    work(place)
    assert watermark(place.client, "ledger") == watermark(place.client, "events")


def sums(place: Workplace) -> Counter[str]:
    """How many deliveries there were, by the sums and by the records."""
    found: Counter[str] = Counter()
    for row in archived(place.client, place.lake.place, "rollup_hourly").to_pylist():
        found[row["state"]] += row["count"] if row["state"] == "sent" else 0
    found["records"] = archived(place.client, place.lake.place, "ledger")["state"].to_pylist().count("sent")
    found["attempts"] = sum(
        row["attempts"] or 0 for row in archived(place.client, place.lake.place, "deliveries").to_pylist()
    )
    return found


def last_batch(place: Workplace) -> tuple[bytes, str]:
    rows = archived(place.client, place.lake.place).filter(pa.compute.field("stream") == "/_ledger").to_pylist()
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
        monkeypatch.setattr(ledger, "heads_from_rows", lambda rows: {})

    work(place)

    assert before["sent"] >= 3
    assert (sums(place) == before) is not forgets
    assert forgets or audit.run(place, {}).exit_code == 0


def path_of(file: PlannedFile) -> Path:
    return Path(file.location.removeprefix("file://"))


def test_no_file_is_not_taken_for_no_rows(world: World, tmp_path: Path) -> None:
    server, place = world
    with Tail(server, "/gone", after=0) as tail:
        publish(server, "/gone")
        assert tail.lines(1)
    ask(server, "POST", "/v1/audit/cut")
    archive.run(place, {})
    newest = path_of(place.files("events")[-1])
    kept = newest.rename(tmp_path / "kept.parquet")
    before = watermark(place.client, "ledger")

    with pytest.raises(LakeHole, match="is gone"):
        ledger.run(place, {})
    assert watermark(place.client, "ledger") == before
    kept.rename(newest)
    ledger.run(place, {})
    newest = path_of(place.files("ledger")[-1])
    kept = newest.rename(tmp_path / "kept.parquet")

    with pytest.raises(LakeHole, match="is gone"):
        rollup.run(place, {})
    kept.rename(newest)
    rollup.run(place, {})
    assert watermark(place.client, "rollup") == watermark(place.client, "ledger")


def test_a_state_that_is_gone_is_not_taken_for_an_empty_table(world: World, tmp_path: Path) -> None:
    server, place = world
    publish(server, "/orders")
    archive.run(place, {})
    state = Path(place.client.get("lake/events").value["tables"]["events"].removeprefix("file://"))
    kept = state.rename(tmp_path / "kept.json")

    with pytest.raises(LakeHole, match="the present state of events"):
        open_lake(place.lake.place).files("events", place.client.get("lake/events").value)
    kept.rename(state)


def test_sabotage_ids_that_no_file_has_are_found_missing() -> None:
    files = [PlannedFile(LakeFile(lo, lo + 5, "2026-11-15", "events"), "", 1, 1, {}) for lo in (0, 10)]

    with pytest.raises(LakeHole, match="no file of events has the ids 6 to 10"):
        covering("events", files, 0, 15)
    assert covering("events", files, 10, 15) == files[1:]


def test_an_audit_says_times_of_the_world_and_not_of_the_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = world
    began = datetime.now(UTC).replace(microsecond=0)
    server.kill()
    server.restart()

    assert began <= came_back(place, monkeypatch) <= datetime.now(UTC)

    def of_the_place(micros: int) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.localtime(micros / 1e6))

    monkeypatch.setattr(audit_verdicts, "_utc", of_the_place)
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


@pytest.mark.parametrize("reads_all", [False, True], ids=["honest", "sabotage: all files are read"])
def test_a_rollup_reads_no_file_that_no_record_speaks_of(
    world: World, monkeypatch: pytest.MonkeyPatch, reads_all: bool
) -> None:
    server, place = world
    for _ in range(3):
        publish(server, "/orders")
        archive.run(place, {})
    files, store = place.files("events"), place.lake.store
    late = {"entry": 1, "state": "sent", "first": files[0].file.hi, "last": files[-1].file.hi}
    beyond = {**late, "first": files[-1].file.hi + 5, "last": files[-1].file.hi + 9}
    rows = pa.Table.from_pylist([late, beyond], arrow_schema("ledger"))
    written = write_file(store, LakeFile(0, 1, "2026-11-15", "ledger"), [rows])
    assert written
    if reads_all:
        monkeypatch.setattr(rollup.FilesSpokenOf, "__call__", lambda task, sources: set(range(len(task.ends))))

    read = rollup.entries_of(place, [rollup.RecordsOf(store, written.location, 2, 0, files[-1].file.hi)])

    assert len(files) > 2
    assert read == (files if reads_all else [files[0], files[-1]])


def test_sabotage_a_lake_that_does_not_look_whether_its_files_are_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of this module. Even then no rows are lost: the job stumbles over the file, only less clearly."""
    monkeypatch.setattr(Lake, "check", lambda lake, files: None)
    with pytest.raises(Exception, match=r"Failed to open|No such file"):
        test_no_file_is_not_taken_for_no_rows(world, tmp_path)
