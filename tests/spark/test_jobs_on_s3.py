"""All jobs on an object store: Spark itself cannot open it, its tasks do by pyarrow."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.commit import watermark
from penstock.pipeline.jobs import Workplace, archive, audit, compact, erase, ledger, replay, rollup
from penstock.testing import RunningServer, S3Server, wait_until
from tests.lake_grep import files_with
from tests.spark.conftest import make_place
from tests.spark.filling import archived, differences, fill, publish
from tests.spark.test_jobs import recorded, tail

SECRETS = [b"a secret"]


@pytest.fixture
def place(spark: SparkSession, server: RunningServer, s3: S3Server) -> Workplace:
    return make_place(spark, server, "s3://lake/jobs")


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
