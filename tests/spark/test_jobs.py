"""The jobs end to end: a real server, a real lake, one Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigInvalid
from penstock.iceberg.files import PlannedFile, arrow_schema, read_batches, write_file
from penstock.pipeline import jobs, merging
from penstock.pipeline.client import RecordChanged
from penstock.pipeline.commit import Faults, Intent, Slice, Turn, watermark
from penstock.pipeline.jobs import Workplace, archive, compact, ledger, rollup
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import LakeMismatch, bind
from penstock.testing import RunningServer, start_server, wait_until
from penstock.wire.lake_files import LakeFile
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
    assert differences(filled.client, filled.lake.place) == []
    assert watermark(filled.client, "events") == filled.client.newest()
    files = filled.files("events")
    assert all(one.file.hi == following.file.lo for one, following in pairwise(files))


def test_deliveries_say_what_became_of_what_for_whom(filled: Workplace) -> None:
    rows = archived(filled.client, filled.lake.place, "deliveries").to_pylist()

    orders = [row for row in rows if row["stream"] == "/orders"]
    assert {row["recipient"] for row in orders} == {"alice", "bob"}
    assert {row["state"] for row in orders} == {"sent"}
    assert all(row["sent_time"] is not None and row["attempts"] == 1 for row in orders)
    assert watermark(filled.client, "ledger") == watermark(filled.client, "events")


def test_sums_per_hour_count_everything_once(filled: Workplace) -> None:
    rows = archived(filled.client, filled.lake.place, "rollup_hourly").to_pylist()
    accepted = sum(row["count"] for row in rows if row["state"] == "accepted")
    sent = [row for row in rows if row["state"] == "sent"]

    assert accepted == END_TO_END + 3
    assert sum(row["count"] for row in sent) == 6
    assert all(row["latency_ms"] >= 1 for row in sent)
    assert {row["recipient"] for row in archived(filled.client, filled.lake.place, "activity").to_pylist()} >= {
        "alice",
        "bob",
    }


def test_nothing_is_written_in_another_way_than_promised(filled: Workplace) -> None:
    newest = filled.files("events")[-1].location.removeprefix("file://")
    metadata = parquet.read_metadata(newest)
    column = next(
        metadata.row_group(0).column(number)
        for number in range(metadata.num_columns)
        if metadata.row_group(0).column(number).path_in_schema == "time"
    )

    assert column.compression == "ZSTD"
    assert column.physical_type == "INT64"
    assert "timeUnit=microseconds" in str(metadata.schema.column(8).logical_type)
    assert {field.metadata[b"PARQUET:field_id"] for field in parquet.read_schema(newest)} >= {b"1", b"12"}
    assert [path.name for path in Path(newest).parent.iterdir() if path.suffix != ".parquet"] == []


def test_compaction_changes_the_files_and_no_row(filled: Workplace) -> None:
    publish(filled.client, "/orders", [b"four"])
    archive.run(filled, {})
    before = archived(filled.client, filled.lake.place)
    files = filled.files("events")
    assert len(files) > 1

    outcome = compact.run(filled, {"all": ""})

    assert outcome.data["after"] < outcome.data["before"]
    assert archived(filled.client, filled.lake.place).equals(before)
    assert len(filled.files("events")) == 1
    assert filled.files("events")[0].file.hi == files[-1].file.hi
    assert all(Path(one.location.removeprefix("file://")).exists() for one in files), "a scan may still need them"


def test_compacting_again_finds_nothing_to_do(filled: Workplace) -> None:
    compact.run(filled, {"all": ""})

    assert compact.run(filled, {"all": ""}).data == {"before": 0, "after": 0, "swept": 0}


def planned(*ranges: tuple[int, int, int], day: str = "2026-11-15") -> list[PlannedFile]:
    return [PlannedFile(LakeFile(lo, hi, day, "events"), f"{lo}", size, 1, {}) for lo, hi, size in ranges]


def test_a_file_that_outweighs_its_neighbours_waits_until_its_day_is_over() -> None:
    files = planned((0, 10, 100), (10, 20, 30), (20, 30, 30))

    assert list(compact.groups_of(files, "events", "2026-11-15")) == [files[1:]]
    assert list(compact.groups_of(files, "events", "2026-11-16")) == [files]
    more = [*files, *planned((30, 40, 40))]
    assert list(compact.groups_of(more, "events", "2026-11-15")) == [more]


def test_however_many_files_a_day_brings_a_handful_is_left_and_a_row_is_written_again_some_times() -> None:
    files: list[PlannedFile] = []
    written = 0
    for number in range(48):  # half hours, each with 360 files
        files += planned(*((number * 360 + one, number * 360 + one + 1, 10) for one in range(360)))
        for group in list(compact.groups_of(files, "events", "2026-11-15")):
            whole = planned((group[0].file.lo, group[-1].file.hi, sum(one.size for one in group)))
            files = sorted([one for one in files if one not in group] + whole, key=lambda one: one.file)
            written += whole[0].size
        assert len(files) <= 8, number
    assert sum(one.size for one in files) == 48 * 360 * 10
    assert written <= 8 * 48 * 360 * 10


def test_no_file_is_made_larger_than_the_target_and_none_of_two_days() -> None:
    half = compact.TARGET_BYTES // 2
    files = planned((0, 10, half), (10, 20, half), (20, 30, half), (30, 40, 2 * half), (40, 50, half))
    others = planned((50, 60, 5), day="2026-11-16")

    groups = list(compact.groups_of([*others, *files], "events", ""))

    assert [[one.file.lo for one in group] for group in groups] == [[0, 10]]


def test_files_between_which_another_day_has_ids_stay_apart() -> None:
    files = planned((0, 10, 5), (20, 30, 5), (30, 40, 5))
    others = planned((10, 20, 5), (40, 50, 5), day="2026-11-16")

    assert list(compact.groups_of([*others, *files], "events", "")) == [files[1:]]


@pytest.mark.parametrize("swept", [True, False], ids=["honest", "sabotage: nobody sweeps"])
def test_what_a_turn_has_left_that_was_cut_off_is_swept(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, swept: bool
) -> None:
    publish(place.client, "/orders", [b"one"])
    archive.run(place, {})
    left = place.lake.store.location("events/data/day=2026-11-15/e-0-1-abc.parquet")
    place.lake.store.write(place.lake.store.relative(left), b"half a file")
    if not swept:
        monkeypatch.setattr(Turn, "sweep", lambda turn: 0)

    compact.run(place, {})

    stored = {place.lake.store.location(one.path) for one in place.lake.store.list("events")}
    record = place.client.get("lake/events").value
    assert (stored == place.lake.table("events", record).named()) is swept
    assert (left in stored) is not swept


# ── one row for each key ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("looks", "here"),
    [(merging.SURELY_BYTES, merging.HERE_ROWS), (0, merging.HERE_ROWS), (0, 0)],
    ids=["small files", "keys compared", "in tasks"],
)
def test_a_delivery_is_one_row_however_late_its_records_come(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, looks: int, here: int
) -> None:
    monkeypatch.setattr(merging, "SURELY_BYTES", looks)
    monkeypatch.setattr(merging, "HERE_ROWS", here)
    publish(place.client, "/orders", [b"one", b"two"])
    last = place.client.newest()
    for _ in range(3):  # the same reader gets the same again and again
        before = place.client.newest()
        tail(place, "/orders", "alice", 2)
        wait_until(lambda known=before: place.client.call("POST", "/v1/audit/cut")["upto"] > known)
        for job in (archive, ledger, rollup):
            job.run(place, {})

    rows = [
        row for row in archived(place.client, place.lake.place, "deliveries").to_pylist() if row["stream"] == "/orders"
    ]
    assert [(row["recipient"], row["state"], row["attempts"]) for row in rows] == [("alice", "sent", 3)] * len(rows)
    assert len({(row["first"], row["last"]) for row in rows}) == len(rows)
    assert max(row["last"] for row in rows) == last
    for table, keys in (("rollup_hourly", rollup._KEYS), ("activity", rollup._WHO)):
        found = archived(place.client, place.lake.place, table).select(list(keys)).to_pylist()
        assert len(found) == len({tuple(row.values()) for row in found}) > 0
    sums = archived(place.client, place.lake.place, "rollup_hourly").to_pylist()
    assert sum(row["count"] for row in sums if row["state"] == "sent") == 6


def deliveries(*entries: int, reason: str = "") -> pa.Table:
    """Rows of `deliveries`, one for each of these entries."""
    row = {"door": "v1", "recipient": "a", "stream": "/a", "key": "", "month": "", "number": 0, "state": "sent"}
    rows = [{**row, "first": entry, "last": entry, "reason": reason, "attempts": 1} for entry in entries]
    return pa.Table.from_pylist(rows, arrow_schema("deliveries"))


def stored(place: Workplace, rows: pa.Table) -> merging.StoredRows:
    """The same in a file of the lake."""
    written = write_file(place.lake.store, LakeFile(0, 9, "2026-11-15", "deliveries"), [rows])
    assert written
    return merging.StoredRows(place.lake.store, written.location, written.rows)


@pytest.mark.parametrize("mixed", [False, True], ids=["honest", "sabotage: dealt out by their reasons"])
def test_a_fold_has_as_many_tasks_as_its_rows_need(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, mixed: bool
) -> None:
    """Rows of one key meet in one task, whichever files they come from."""
    monkeypatch.setattr(jobs, "TASK_ROWS", 15)
    monkeypatch.setattr(merging, "HERE_ROWS", 0)
    fresh = [stored(place, deliveries(*range(begin, begin + 10))) for begin in (1, 11, 21)]
    held = [stored(place, deliveries(*range(16, 36), reason="again"))]
    table = replace(ledger.DELIVERIES, keys=("reason",)) if mixed else ledger.DELIVERIES

    written = merging.merge(place, table, fresh, held, LakeFile(0, 9, "2026-11-15", "deliveries"))

    rows = [
        row for one in written for batch in read_batches(place.lake.store, one.location) for row in batch.to_pylist()
    ]
    once = {entry: 2 if 16 <= entry <= 30 else 1 for entry in range(1, 36)}
    assert (sorted((row["first"], row["attempts"]) for row in rows) == sorted(once.items())) is not mixed
    assert len(written) == (2 if mixed else 4)


def test_a_shuffle_of_frames_has_as_many_tasks_as_its_rows_need(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TASK_ROWS", 5)
    with place.shuffling(40):
        assert place.spark.conf.get("spark.sql.shuffle.partitions") == "8"
    assert place.spark.conf.get("spark.sql.shuffle.partitions") == "4"


def test_a_late_record_rewrites_the_file_that_it_speaks_of_and_no_other(place: Workplace) -> None:
    known = {"month": ("", ""), "recipient": ("a", "a")}
    files = [
        PlannedFile(LakeFile(lo, lo + 10, "2026-11-15", "deliveries"), str(lo), 1, 1, {**known, "first": (lo, lo + 9)})
        for lo in range(0, 100, 10)
    ]
    late = [stored(place, deliveries(15))]

    assert [one.file.lo for one in merging.touched(place, files, ledger.DELIVERIES, late)] == [10]


# ── the commit protocol, without Spark ─────────────────────────────────────────────────────────


def test_an_overtaken_driver_publishes_nothing(place: Workplace) -> None:
    """What it has written is gone, too."""
    slow = Turn(place.client, place.lake, "events")
    slow.intend(Intent(0, 10, (Slice(0, 10, "2026-11-15", 1),)))

    quick = Turn(place.client, place.lake, "events")

    assert quick.intent == slow.intent
    written = write_file(place.lake.store, LakeFile(0, 10, "2026-11-15", "events"), [])
    assert written is None, "no rows, no file"
    with pytest.raises(RecordChanged):
        slow.publish()
    quick.publish()
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
        make_place(place.spark, other, place.lake.place)


@pytest.mark.parametrize("location", ["nonsense://bucket/lake", "file://elsewhere/lake"])
def test_a_lake_that_cannot_be_opened_is_refused_with_a_reason(location: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"cannot be opened|of another machine"):
        open_lake(location)


@pytest.mark.long
def test_five_million_entries_end_to_end(place: Workplace) -> None:
    fill(place.client, LONG)

    assert archive.run(place, {}).data["rows"] >= LONG
    assert differences(place.client, place.lake.place) == []
