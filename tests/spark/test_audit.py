"""The audit: passes what is sound, and finds and names what is planted."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace as replaced
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.iceberg.files import PlannedFile, arrow_schema, write_file
from penstock.iceberg.tables import Table
from penstock.pipeline import audit_queries, audit_verdicts, file_lists
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.file_lists import FileList
from penstock.pipeline.jobs import JobOutcome, Workplace, archive, audit
from penstock.pipeline.jobs.ledger import BATCH
from penstock.pipeline.lake import LEDGER, LakeHole, open_lake
from penstock.testing import RunningServer, wait_until
from penstock.wire.lake_files import LakeFile
from tests.api.client import Tail
from tests.doors.msgstream_client import emit, login, packs
from tests.pipeline.test_untangling import midnight, mix_up
from tests.spark.conftest import make_place
from tests.spark.doors_at_work import APP, DEVICE, PUSHED, USER, doors_at_work
from tests.spark.filling import archived, publish

T0 = datetime(2026, 11, 15, tzinfo=UTC)


# ── the whole, on a real server ────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> object:
    """A server with all doors in use, killed twice, its lake in several files, and an audit of it that passes."""
    folder = tmp_path_factory.mktemp("audited")
    with doors_at_work(folder / "data") as doors:
        server = doors.server
        place = make_place(spark, server, folder / "lake")
        doors.round()
        read(server, place, "/orders", 30)
        publish(place.client, "/seam", (b"%d" % number for number in range(30)))
        archive.run(place, {})
        for _ in range(2):
            doors.cut_off()
            doors.round()
        for stream in ("/orders", "/seam", "/meta", "/end", "/absent"):
            publish(place.client, stream, (b"%d" % number for number in range(20)))
        read(server, place, "/late/_odd", 5)
        talk(server, place)
        read(server, place, "/orders", 5)
        cut = audit.take_cut(place.client)
        outcome = audit.run(place, {})
        yield place, cut, outcome


def read(server: RunningServer, place: Workplace, stream: str, count: int) -> None:
    publish(place.client, stream, (b"%d" % number for number in range(count)))
    with Tail(server, stream, after=0, consumer="reader") as tail:
        tail.lines(count)


def talk(server: RunningServer, place: Workplace) -> None:
    """A session gets three packs of its own and two of a stream that it follows, and confirms all but the last."""
    key = login(server, "alice", follow=["/followed"])
    for number in range(3):
        emit(server, key, ["hello", number])
    publish(place.client, "/followed", [b"1", b"2"])
    wait_until(lambda: len(packs(server, key)) == 5)
    packs(server, key, confirm="1,2,3,4")


Audited = tuple[Workplace, audit.AuditCut, JobOutcome]


def test_a_sound_lake_passes_and_a_crash_is_said_to_be_one(audited: Audited) -> None:
    _, cut, outcome = audited

    assert outcome.exit_code == 0, outcome.words
    found = {(one["verdict"], one["check"]): one["words"] for one in outcome.data["findings"]}
    # The app may have taken what was on its way to it when the server was killed, which then never heard so.
    found.pop(("unknown(skipped)", "pushers"), None)
    assert set(found) == {("unknown(crash)", "ledger"), ("pending", "mailboxes")}
    assert "of 3 recipients wait" in found["pending", "mailboxes"]
    assert "node local did not close epoch 2" in found["unknown(crash)", "ledger"]
    assert outcome.data["upto"] >= cut.upto


def test_every_door_has_had_its_say(audited: Audited) -> None:
    place, _, _ = audited
    records = archived(place.client, place.lake.place, "ledger")
    doors = set(records["door"].to_pylist())

    assert {"eventhorizon", "sps", "trickle", "webpush", "msgstream", "v1"} <= doors


def test_a_device_that_came_back_has_said_how_far_it_had_come(audited: Audited) -> None:
    place, _, _ = audited
    rows = archived(place.client, place.lake.place, "positions").to_pylist()

    said = [row["upto"] for row in rows if (row["door"], row["recipient"]) == ("sps", f"{USER}/{DEVICE}")]
    assert said
    assert sorted(set(said)) == sorted(said)


class NotPlanning(Workplace):
    """Refuses what has an object for each file."""

    def files(self, table: str) -> list[PlannedFile]:
        raise AssertionError(f"all files of {table} are planned")


def test_it_says_the_same_when_it_reads_everything_again(audited: Audited) -> None:
    place, cut, outcome = audited
    small = NotPlanning(place.spark, place.client, place.lake)

    assert audit.examine(small, cut, full=True).data()["findings"] == outcome.data["findings"]


def without(table: str, unwanted: Callable[[pa.Table], pa.Array]) -> Callable[[Workplace], None]:
    """Plants a hole: rows go from the first file that has any of them."""

    def plant(place: Workplace) -> None:
        for file in place.files(table):
            rows = parquet.ParquetFile(path_of(file)).read()
            kept = rows.filter(pc.invert(pc.fill_null(unwanted(rows), False)))
            if kept.num_rows < rows.num_rows:
                replace(path_of(file), kept)

    return plant


def path_of(file: PlannedFile) -> Path:
    return Path(file.location.removeprefix("file://"))


def replace(path: Path, rows: pa.Table) -> None:
    """Other rows under the same name, durable and complete: only the audit can tell."""
    kept = path.with_suffix(".kept")
    if not kept.exists():
        path.rename(kept)
    parquet.write_table(rows, path)


def entry(stream: str, index: int) -> Callable[[pa.Table], pa.Array]:
    return lambda rows: pc.and_(pc.equal(rows["stream"], stream), pc.equal(rows["index"], index))


def stream_is(stream: str) -> Callable[[pa.Table], pa.Array]:
    return lambda rows: pc.equal(rows["stream"], stream)


def second_push(place: Workplace) -> Callable[[pa.Table], pa.Array]:
    """What an app has acknowledged of its stream, but for the first time and the last."""
    rows = archived(place.client, place.lake.place, "ledger").sort_by("entry")
    acked = pc.and_(pc.equal(rows["stream"], PUSHED), pc.equal(rows["state"], "acked"))
    first, *between, last = rows.filter(acked)["first"].to_pylist()
    assert first < min(between) <= max(between) < last
    return lambda rows: pc.and_(pc.equal(rows["stream"], PUSHED), pc.is_in(rows["first"], pa.array(between)))


def twice(place: Workplace) -> None:
    path = path_of(place.files("events")[0])
    rows = parquet.ParquetFile(path).read()
    replace(path, pa.concat_tables([rows, rows.slice(3, 2)]))


ROWS_GONE = {
    "hole": (entry("/orders", 7), "/orders: index 0 to 29 is not all there"),
    "hole at a seam": (entry("/seam", 30), "/seam: index 30 is not all there, between the ids"),
    "meta line": (lambda rows: pc.and_(stream_is("/meta")(rows), pc.equal(rows["kind"], "meta")),
                  "/meta: lines are missing in chunk 0"),
    "cut end": (entry("/end", 19), "/end ends at index 19"),
    "absent stream": (stream_is("/absent"), "/absent is not there at all; its head says 20 events"),
    "stream that no pattern covers": (entry("/late/_odd", 4), "/late/_odd ends at index 4"),
    "batch of the ledger": (lambda rows: pc.match_substring(rows["attributes"], '"epoch":"2","sequence":"1"'),
                            "/_ledger"),
}  # fmt: skip


def test_rows_that_are_gone_are_each_found_and_named(audited: Audited) -> None:
    place, cut, _ = audited
    for unwanted, _ in ROWS_GONE.values():
        without("events", unwanted)(place)
    without("ledger", lambda rows: pc.and_(pc.equal(rows["epoch"], 1), pc.equal(rows["sequence"], 1)))(place)
    without("ledger", lambda rows: pc.and_(pc.equal(rows["recipient"], "alice"), pc.equal(rows["state"], "acked")))(
        place
    )
    without("ledger", second_push(place))(place)
    twice(place)
    try:
        report = audit.examine(place, cut)
    finally:
        restore(place)

    assert any(one.verdict == "unknown(skipped)" and APP in one.words for one in report.findings), report.words()
    missing = [one.words for one in report.findings if one.verdict == "missing"]
    assert not report.passes
    for name, (_, words) in ROWS_GONE.items():
        assert any(words in said for said in missing), f"{name}: {report.words()}"
    assert any("batch 1 of node local, epoch 1, in ledger" in said for said in missing)
    assert any("item 2 of alice" in said for said in missing), report.words()
    doubles = [one.words for one in report.findings if one.verdict == "double"]
    assert any("2 rows whose ids are there already" in said for said in doubles)


@pytest.mark.long
@pytest.mark.parametrize("gone", ROWS_GONE)
def test_each_alone_makes_the_audit_fail(audited: Audited, gone: str) -> None:
    place, cut, _ = audited
    unwanted, words = ROWS_GONE[gone]
    without("events", unwanted)(place)
    try:
        report = audit.examine(place, cut)
    finally:
        restore(place)

    assert any(one.verdict == "missing" and words in one.words for one in report.findings), report.words()


def files(*ranges: tuple[int, int]) -> list[LakeFile]:
    return [LakeFile(lo, hi, "2026-11-15", "events") for lo, hi in ranges]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (files((0, 10), (10, 20)), []),
        (files((10, 20)), ["missing: no file has the ids 1 to 10"]),
        (files((0, 10), (15, 20)), ["missing: no file has the ids 11 to 15"]),
        (files((0, 10)), ["missing: no file has the ids 11 to 20"]),
        (files((0, 10), (8, 20)), ["double: events/data/day=2026-11-15/e-000000000008-000000000020-.parquet "
                                   "claims the ids 9 to 10 of another file"]),
    ],
)  # fmt: skip
def test_files_must_follow_each_other(there: list[LakeFile], said: list[str]) -> None:
    assert [f"{one.verdict}: {one.words}" for one in audit_verdicts.check_files(there, 20)] == said


@pytest.mark.parametrize("sabotage", [False, True], ids=["honest", "sabotage: it is left as it is"])
def test_files_that_an_earlier_version_has_mixed_up_are_put_right_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: bool
) -> None:
    with midnight(tmp_path, "ABA") as here:
        mix_up(here, monkeypatch)
        if sabotage:
            monkeypatch.setattr(audit, "are_tangled", lambda files: False)

        outcome = audit.run(make_place(spark, here.server, here.lake.place), {})

    verdicts = {(one["verdict"], one["check"]) for one in outcome.data["findings"]}
    assert ({("missing", "events"), ("double", "files")} <= verdicts) is sabotage, outcome.words
    assert outcome.exit_code == int(sabotage), outcome.words


def test_a_file_that_is_gone_is_named(audited: Audited) -> None:
    place, cut, _ = audited
    path = path_of(place.files("events")[-1])
    path.rename(path.with_suffix(".kept"))
    try:
        with pytest.raises(LakeHole, match=f"{path.name} is gone"):
            audit.examine(place, cut)
    finally:
        restore(place)


def test_holes_between_files_are_named_up_to_a_limit() -> None:
    there = files(*((10 * number, 10 * number + 5) for number in range(500)))

    found = list(audit_verdicts.check_files(there, 5_000))

    assert len(found) == audit_verdicts.NAMED + 1
    assert found[-1].words == f"and {500 - audit_verdicts.NAMED} more"


class Planning(Workplace):
    """The sabotage: an object for each file, as other jobs have it."""

    def listed(self, table: str) -> FileList:
        assert self.files(table)
        return super().listed(table)


def point_at_files(place: Workplace, count: int) -> None:
    """Let `events` have so many files by its manifests, none of which is there."""
    row = pa.Table.from_pylist([{"id": 1, "stream": "/a", "index": 0}], arrow_schema("events"))
    written = write_file(place.lake.store, LakeFile(0, 1, "2026-11-15", "events"), [row])
    assert written
    table = Table.create(place.lake.store, "events")
    paths = [LakeFile(9 * one, 9 * one + 9, "2026-11-15", "events", f"{one:016x}").path for one in range(count)]
    for begin in range(0, count, 200):  # too many for sixteen manifests to be merged
        some = [replaced(written, location=place.lake.store.location(path)) for path in paths[begin : begin + 200]]
        table = table.append(some, now_ms=0).table
    version = place.client.get("lake/events").version
    place.client.put("lake/events", {"done": 9 * count, "tables": {"events": table.location}}, expect=version)


@pytest.mark.parametrize("kind", [Workplace, Planning], ids=["honest", "sabotage: planned files"])
def test_what_an_audit_takes_for_each_file_is_little(
    place: Workplace, kind: type[Workplace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lists, "_AT_ONCE", 100)  # fewer files show what grows
    cut, peaks = audit.take_cut(place.client), list[int]()
    for count in (200, 1_000, 2_000):  # the first one makes what stays whatever comes
        point_at_files(place, count)
        fresh = kind(place.spark, place.client, open_lake(place.lake.place))
        tracemalloc.start()
        with pytest.raises(LakeHole, match="is gone"):
            audit.examine(fresh, cut)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    found = (peaks[2] - peaks[1]) / 1_000
    assert (found < 100) is (kind is Workplace), f"{peaks} bytes of Python's"


def restore(place: Workplace) -> None:
    for kept in Path(place.lake.place).glob("*/data/*/*.kept"):
        kept.rename(kept.with_suffix(".parquet"))


def test_a_log_that_was_trimmed_before_its_first_archive_is_audited_from_there(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    client = PipelineClient(server.url, server.admin_token)
    publish(client, "/old", [b"1", b"2"])
    publish(client, "/both", [b"1", b"2"])
    upto = client.newest()
    client.call("POST", "/v1/log/trim", body=b'{"upto":%d,"apply":true}' % upto)
    place = make_place(spark, server, tmp_path / "lake")
    publish(place.client, "/both", [b"3"])

    outcome = audit.run(place, {})

    assert outcome.exit_code == 0, outcome.words
    assert [one["verdict"] for one in outcome.data["findings"]] == ["unknown(trimmed)"]
    assert place.files("events")[0].file.lo == upto


# ── the checks, on literal frames ──────────────────────────────────────────────────────────────


def record(
    state: str, number: int = 0, recipient: str = "alice", seconds: int = 0, **more: object
) -> tuple[object, ...]:
    named = {"node": "n1", "epoch": 1, "sequence": 0, "mark": "", "lost": 0, **more}
    time = T0 + timedelta(seconds=seconds)
    batch = (1, named["node"], named["epoch"], named["sequence"], named["mark"], named["lost"])
    return (
        *batch,
        time,
        state,
        "",
        "webpush",
        recipient,
        "",
        0,
        0,
        f"m{number}",
        "2026_11" if number else "",
        number,
        None,
    )


def test_every_item_is_pending_or_closed(spark: SparkSession) -> None:
    boxes = [("alice", "2026_11", 6, [2], 0), ("bob", "2026_11", 4, [], 2), ("carol", "2026_11", 1, [], 0)]
    rows = [record("acked", 1), record("sent", 3), record("expired", 4), record("acked", 4), record("accepted", 5)]
    rows += [record("dropped", 1, "bob")]

    boxes += [("dora", "2026_11", 6, [], 0), ("eve", "2026_11", 6, [], 0)]
    followed = (T0, "acked", "", "msgstream")
    rows += [
        (*record("")[:6], *followed, who, "/a", 10, last, "", "", 0, None) for who, last in (("dora", 18), ("eve", 16))
    ]
    entries = spark.createDataFrame([(10 + 2 * index, index) for index in range(6)], "id BIGINT, index BIGINT")

    found = audit_queries.unclosed(
        spark.createDataFrame(boxes, audit_queries.MAILBOXES), spark.createDataFrame(rows, LEDGER), entries
    ).collect()

    open_items = sorted((row.recipient, row.number) for row in found)
    assert open_items[:2] == [("alice", 3), ("alice", 5)]
    assert {who for who, _ in open_items[2:]} == {"eve"}, "dora has five entries closed for five items, eve only four"


def test_events_are_read_once_for_all_epochs_that_were_not_closed(spark: SparkSession) -> None:
    second = 1_000_000
    start = int(T0.timestamp()) * second
    columns = "node STRING, epoch BIGINT, ended BIGINT, closed BOOLEAN, lost BIGINT, next_began BIGINT"
    told = [
        ("n1", 1, start, False, 0, start + 10 * second),
        ("n1", 2, start + 20 * second, True, 0, start + 30 * second),
        ("n1", 3, start + 40 * second, False, 5, start + 50 * second),
        ("n2", 1, start + 5 * second, False, 0, start + 45 * second),  # at the same time as those of n1
        ("n2", 2, start + 90 * second, False, 0, start + 99 * second),  # and one in which nothing came
        ("n2", 3, start + 100 * second, False, 0, None),
    ]
    rows = [("/a", number, T0 + timedelta(seconds=number)) for number in range(60)]
    rows += [("/_ledger", number, T0 + timedelta(seconds=number)) for number in range(60)]
    events = spark.createDataFrame(rows, "stream STRING, index BIGINT, time TIMESTAMP")
    asked: list[tuple[str, ...]] = []

    def read(*columns: str) -> DataFrame:
        asked.append(columns)
        return events.select(*columns)

    found = list(audit_verdicts.check_epochs(spark, spark.createDataFrame(told, columns).collect(), read))

    counts = [int(one.words.rpartition("the ")[2].split()[0]) for one in found if "entries of then" in one.words]
    assert counts == [11, 11, 41, 0]
    assert [one.words for one in found if "dropped" in one.words] == [
        "node n1, epoch 3: 5 records were dropped while the log took nothing"
    ]
    assert len(asked) == 1


def test_numbers_of_batches_that_nobody_has_are_named(spark: SparkSession) -> None:
    told = [("n1", 1, 0), ("n1", 1, 1), ("n1", 1, 4), ("n2", 1, 0), ("n2", 1, 3)]
    # Entries that cannot be read: what they say of themselves fills a gap, and makes none
    bad = [("n2", 1, 1), ("n2", 1, 2), ("forged", 1, 1000), (None, None, None)]
    rows = [(*one, 1000 + number) for number, one in enumerate(told + bad)]
    frame = spark.createDataFrame(rows, "node STRING, epoch BIGINT, sequence BIGINT, entry BIGINT")
    kept = [record(BATCH, sequence=number, node=node) for node, _, number in told]
    unreadable = spark.createDataFrame([(row[3],) for row in rows[len(told) :]], "entry BIGINT")

    found = audit_queries.lost_batches(frame, spark.createDataFrame(kept, LEDGER), unreadable).collect()

    assert [tuple(row) for row in found] == [("n1", 1, 2, 3, "events")]


def hinted(ledger: DataFrame) -> DataFrame:
    """The sabotage: every batch that was ever written is collected by the driver."""
    first = (
        ledger.where(F.col("state") == BATCH).groupBy("node", "epoch", "sequence").agg(F.min("entry").alias("entry"))
    )
    return ledger.join(F.broadcast(first.select("entry")), "entry", "left_semi")


@pytest.mark.parametrize("query", [audit_queries.without_repeats, hinted], ids=["honest", "sabotage: a hint"])
def test_a_batch_counts_once_and_the_driver_collects_few_of_them_only(
    spark: SparkSession, query: Callable[[DataFrame], DataFrame]
) -> None:
    again = [(2, *record(state, sequence=0)[1:]) for state in (BATCH, "sent")]
    rows = [record(BATCH, sequence=0), record("sent"), *again, (3, *record(BATCH, sequence=1)[1:])]
    ledger = spark.createDataFrame(rows, LEDGER)
    usual = spark.conf.get("spark.sql.autoBroadcastJoinThreshold") or ""
    assert usual.lower() in ("10485760", "10485760b", "10mb"), "docs/pipeline.md says so"
    assert sorted((row.entry, row.state) for row in query(ledger).collect()) == [(1, BATCH), (1, "sent"), (3, BATCH)]

    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "1")  # as if they were many
    try:
        plan = query(ledger)._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set("spark.sql.autoBroadcastJoinThreshold", usual)
    assert ("Broadcast" in plan) is (query is hinted)
