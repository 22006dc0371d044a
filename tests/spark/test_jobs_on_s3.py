"""All jobs on an object store: Spark itself cannot open it, its tasks do by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.iceberg.store import open_store
from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import JobOutcome, Workplace, archive, audit, compact, erase, ledger, repair, replay, rollup
from penstock.pipeline.lake import open_lake
from penstock.pipeline.loop import LakeUnreachable, perform
from penstock.testing import RunningServer, S3Server, wait_until
from tests.lake_grep import files_with
from tests.spark.conftest import make_place
from tests.spark.filling import archived, differences, fill, publish
from tests.spark.test_jobs import recorded, tail

SECRETS = [b"a secret"]


@pytest.fixture
def place(spark: SparkSession, server: RunningServer, s3: S3Server) -> Workplace:
    return make_place(spark, server, f"s3://lake/{uuid4().hex}")


def rows_of(place: Workplace, table: str) -> list[str]:
    return sorted(map(str, archived(place.client, place.lake.place, table).to_pylist()))


def test_every_job_does_on_s3_what_it_does_in_a_folder(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FEW_ROWS", 1_000)  # several tasks
    client = place.client
    fill(client, 3_000)
    secret = client.call("POST", "/v1/publish", {"stream": "/orders"}, SECRETS[0])["id"]
    for number in range(2):
        last = client.call("POST", "/v1/publish", {"stream": "/orders"}, b"%d" % number)["id"]
        tail(place, "/orders", "alice", 2 + number)
        wait_until(lambda entry=last: recorded(place, entry, "alice"))
        for job in (archive, ledger, rollup):
            job.run(place, {})
    assert watermark(client, "rollup") == watermark(client, "events") == client.newest()

    for table, part in (("deliveries", "metadata"), ("rollup_hourly", "data")):
        before = rows_of(place, table)
        place.lake.store.delete([one.path for one in place.lake.store.list(f"{table}/{part}")])
        assert table in repair.run(place, {}).words
        assert rows_of(place, table) == before != []

    assert files_with(place.lake.store, SECRETS, "events/data") != []
    assert erase.run(place, {"ids": str(secret)}).data["rows"] == 1
    assert compact.run(place, {"all": ""}).data["after"] >= 1
    replayed = replay.run(place, {"name": "again", "streams": "/orders", "to": "/copy"})
    assert replayed.data["sent"] == 2
    outcome = audit.run(place, {})

    assert outcome.exit_code == 0, outcome.words
    assert differences(client, place.lake.place) == []
    assert files_with(place.lake.store, SECRETS) == []
    rows = [row for row in archived(client, place.lake.place, "deliveries").to_pylist() if row["stream"] == "/orders"]
    assert len({(row["recipient"], row["first"], row["last"]) for row in rows}) == len(rows) > 0
    publish(client, "/orders", [b"after"])
    archive.run(place, {})
    assert differences(client, place.lake.place) == []


# ── the store is away ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AwayUnderTasks(Workplace):
    """The store is paused when tasks are about to read it; the driver has found all that it needs by then."""

    s3: S3Server = field(kw_only=True)

    def read(self, *given: Any, **more: Any) -> DataFrame:
        frame = Workplace.read(self, *given, **more)
        self.s3.pause()
        return frame

    def in_tasks(self, function: Any, items: Sequence[Any]) -> list[Any]:
        self.s3.pause()
        return Workplace.in_tasks(self, function, items)


class TakesNothingForNone(AwayUnderTasks):
    """The sabotage: what cannot be read counts as what is not there."""

    def read(self, *given: Any, **more: Any) -> DataFrame:
        return AwayUnderTasks.read(self, *given, **more).where("false")

    def in_tasks(self, function: Any, items: Sequence[Any]) -> list[Any]:
        try:
            with pytest.raises((PySparkException, OSError)):
                AwayUnderTasks.in_tasks(self, function, items)
        finally:
            self.s3.resume()
        return []

    def in_groups(self, *given: Any) -> DataFrame:
        return AwayUnderTasks.in_groups(self, *given).where("false")


def test_an_audit_and_a_replay_under_which_the_store_is_away_go_on_when_it_is_back(
    place: Workplace, s3: S3Server
) -> None:
    client = place.client
    for number in range(2):
        upto = client.call("POST", "/v1/publish", {"stream": "/orders"}, b"%d" % number)["id"]
        archive.run(place, {})  # in a file of its own
    options = {"streams": "/orders", "to": "/copy", "after": str(upto - 1)}
    impatient = open_lake(place.lake.place)
    impatient.epoch, impatient.store = place.lake.epoch, open_store(place.lake.place, seconds=1)

    def run_away(kind: type[AwayUnderTasks], job: str, **options: str) -> JobOutcome:
        try:
            return perform(kind(place.spark, client, impatient, s3=s3), job, options)
        finally:
            s3.resume()

    with pytest.raises(LakeUnreachable):
        run_away(AwayUnderTasks, "replay", name="honest", **options)
    assert replay.run(place, {"name": "honest", **options}).data["sent"] == 1
    run_away(TakesNothingForNone, "replay", name="sabotage", **options)
    assert replay.run(place, {"name": "sabotage", **options}).data["sent"] == 0

    with pytest.raises(LakeUnreachable):
        run_away(AwayUnderTasks, "audit")
    for job in (archive, ledger, rollup):
        job.run(place, {})
    assert audit.run(place, {}).exit_code == 0
    assert "missing" in run_away(TakesNothingForNone, "audit").words
