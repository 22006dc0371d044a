"""The jobs end to end: a real server, a real lake, one Spark session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.client import RecordChanged
from penstock.pipeline.commit import Faults, Intent, Slice, Turn, watermark
from penstock.pipeline.jobs import Workplace, archive, compact, ledger, rollup
from penstock.pipeline.lake_identity import LakeMismatch, bind
from penstock.pipeline.tables import exchange, open_lake
from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.lake import LakeFile
from tests.spark.conftest import make_place
from tests.spark.filling import archived, differences, fill, publish

END_TO_END = 500_000
LONG = 5_000_000


def tail(place: Workplace, stream: str, consumer: str, count: int) -> None:
    """Read *count* events of *stream* as *consumer*, so that the ledger has something to say."""
    asked = {"streams": stream, "after": 0, "consumer": consumer}
    with place.client.open("/v1/tail", asked) as answer:
        for _ in range(count):
            answer.readline()


def recorded(place: Workplace, entry: int, recipient: str) -> bool:
    """Whether the ledger knows that *recipient* was sent *entry*."""
    return place.client.call("GET", "/v1/why", {"entry": entry, "recipient": recipient})["verdict"] == "sent"


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A server with half a million entries and some deliveries, and the lake of it."""
    folder = tmp_path_factory.mktemp("filled")
    with start_server(folder / "data") as server:
        place = make_place(spark, server, folder / "lake")
        fill(place.client, END_TO_END)
        publish(place.client, "/orders", [b"one", b"two"])
        last = place.client.call("POST", "/v1/publish", {"stream": "/orders"}, b"three")["id"]
        for name in ("alice", "bob"):
            tail(place, "/orders", name, 3)
        wait_until(lambda: recorded(place, last, "alice") and recorded(place, last, "bob"))
        archive.run(place, {})
        ledger.run(place, {})
        rollup.run(place, {})
        yield place


def test_events_equal_the_log_row_for_row(filled: Workplace) -> None:
    assert differences(filled.client, filled.lake.root) == []
    assert watermark(filled.client, "events") == filled.client.newest()
    files = filled.lake.files("events")
    assert all(one.hi == following.lo for one, following in pairwise(files))


def test_deliveries_say_what_became_of_what_for_whom(filled: Workplace) -> None:
    rows = archived(filled.lake.root, "deliveries").to_pylist()

    orders = [row for row in rows if row["stream"] == "/orders"]
    assert {row["recipient"] for row in orders} == {"alice", "bob"}
    assert {row["state"] for row in orders} == {"sent"}
    assert all(row["sent_time"] is not None and row["attempts"] == 1 for row in orders)
    assert watermark(filled.client, "ledger") == watermark(filled.client, "events")


def test_sums_per_hour_count_everything_once(filled: Workplace) -> None:
    rows = archived(filled.lake.root, "rollup_hourly").to_pylist()
    accepted = sum(row["count"] for row in rows if row["state"] == "accepted")
    sent = [row for row in rows if row["state"] == "sent"]

    assert accepted == END_TO_END + 3
    assert sum(row["count"] for row in sent) == 6
    assert all(row["latency_ms"] >= 1 for row in sent)
    assert {row["recipient"] for row in archived(filled.lake.root, "activity").to_pylist()} >= {"alice", "bob"}


def test_nothing_is_written_in_another_way_than_promised(filled: Workplace) -> None:
    newest = filled.lake.path(filled.lake.files("events")[-1])
    metadata = parquet.read_metadata(newest)
    column = next(
        metadata.row_group(0).column(number)
        for number in range(metadata.num_columns)
        if metadata.row_group(0).column(number).path_in_schema == "time"
    )

    assert column.compression == "ZSTD"
    assert column.physical_type == "INT64"
    assert "timeUnit=microseconds" in str(metadata.schema.column(8).logical_type)
    assert [path.name for path in newest.parent.iterdir() if not path.name.endswith(".parquet")] == []


def test_compaction_changes_the_files_and_no_row(filled: Workplace) -> None:
    publish(filled.client, "/orders", [b"four"])
    archive.run(filled, {})
    before = archived(filled.lake.root)
    files = filled.lake.files("events")
    assert len(files) > 1

    outcome = compact.run(filled, {"all": ""})

    assert outcome.data["after"] < outcome.data["before"]
    assert archived(filled.lake.root).equals(before)
    assert len(filled.lake.files("events")) == 1
    assert filled.lake.files("events")[0].hi == files[-1].hi
    assert list((filled.lake.root / "_staging").glob("compact-*")) == []


def test_compacting_again_finds_nothing_to_do(filled: Workplace) -> None:
    compact.run(filled, {"all": ""})

    assert compact.run(filled, {"all": ""}).data == {"before": 0, "after": 0}


def test_the_open_hour_is_left_alone(place: Workplace) -> None:
    for number in range(2):
        publish(place.client, "/orders", [b"%d" % number])
        archive.run(place, {})
    files = place.lake.files("events")
    hours = {file: compact._hour(place.lake, file) for file in files}

    assert compact.groups_of(place.lake, "events", 10**9, min(hours.values())) == {}
    assert list(compact.groups_of(place.lake, "events", 10**9, None).values()) == [[files]]


def test_what_is_above_the_watermark_and_what_a_hole_parts_is_not_put_together(tmp_path: Path) -> None:
    lake = open_lake(tmp_path)
    day = "2026-11-15"
    for lo, hi in ((0, 10), (10, 20), (30, 40), (40, 50), (50, 60)):
        path = lake.path(LakeFile(lo, hi, day, "events"))
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))

    groups = compact.groups_of(lake, "events", 50, None)[day]

    assert [[(file.lo, file.hi) for file in group] for group in groups] == [[(0, 10), (10, 20)], [(30, 40), (40, 50)]]


def test_where_folders_cannot_be_exchanged_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="cannot be exchanged"):
        exchange(tmp_path / "missing", tmp_path)


# ── the commit protocol, without Spark ─────────────────────────────────────────────────────────


def test_an_overtaken_driver_publishes_nothing(place: Workplace) -> None:
    slow = Turn(place.client, place.lake, "events")
    slow.intend(Intent(0, 10, (Slice(0, 10, "2026-11-15", 1),)))

    quick = Turn(place.client, place.lake, "events")

    assert quick.intent == slow.intent
    with pytest.raises(RecordChanged):
        slow.publish([])
    quick.publish([])
    assert watermark(place.client, "events") == 10


def test_an_intent_is_redone_as_it_was_written_down(place: Workplace) -> None:
    class Crash(Faults):
        def at(self, point: str) -> None:
            raise KeyboardInterrupt(point)

    turn = Turn(place.client, place.lake, "events", Crash())
    with pytest.raises(KeyboardInterrupt, match="after the intent"):
        turn.intend(Intent(0, 7, (Slice(0, 7, "2026-11-15", 3),)))

    again = Turn(place.client, place.lake, "events")

    assert again.intent == Intent(0, 7, (Slice(0, 7, "2026-11-15", 3),))
    with pytest.raises(ValueError, match="does not follow"):
        again.intend(Intent(0, 9, ()))


def test_a_lake_of_another_server_is_refused(place: Workplace, server: RunningServer, tmp_path: Path) -> None:
    with pytest.raises(LakeMismatch, match="is not the lake"):
        bind(place.client, open_lake(tmp_path / "another"))
    with start_server(tmp_path / "other-data") as other, pytest.raises(LakeMismatch, match="is not the lake"):
        make_place(place.spark, other, place.lake.root)


@pytest.mark.parametrize("location", ["s3://bucket/lake", "hdfs://name/lake", "file://elsewhere/lake"])
def test_a_lake_that_is_no_folder_is_refused_with_a_reason(location: str) -> None:
    with pytest.raises(Exception, match="is not a folder of this machine"):
        open_lake(location)


@pytest.mark.long
def test_five_million_entries_end_to_end(place: Workplace) -> None:
    fill(place.client, LONG)

    assert archive.run(place, {}).data["rows"] >= LONG
    assert differences(place.client, place.lake.root) == []
