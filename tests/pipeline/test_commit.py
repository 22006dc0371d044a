"""One compare-and-set moves watermark and pointers together, on a folder and on S3. No JVM is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.client.http import ApiError, ServerUnreachable
from penstock.errors import PenstockError
from penstock.iceberg.store import open_store
from penstock.pipeline.client import PipelineClient, RecordChanged, StoredRecord
from penstock.pipeline.commit import (
    AFTER_COMMIT,
    AFTER_FILES,
    BEFORE_COMMIT,
    POINTS,
    Faults,
    Intent,
    Slice,
    TableChange,
    Turn,
    _Record,
    watermark,
)
from penstock.pipeline.jobs import archive, compact
from penstock.pipeline.lake import Lake, LakeHole, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.loop import LakeUnreachable, perform
from penstock.testing import RunningServer, S3Server, start_server
from tests.api.client import publish
from tests.pipeline.by_hand import Crash, CrashAt, archived, equals_the_log, exported, logged, make_here, unnamed

IN_A_FOLDER = pytest.mark.parametrize("lake", ["folder", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
"""What does not depend on where the lake is."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("commits") / "data") as server:
        yield server


@pytest.fixture
def server(running: RunningServer) -> RunningServer:
    """The one of this module, which has forgotten what was archived before."""
    client = PipelineClient(running.url, running.admin_token)
    for key in client.list("lake/"):
        client.delete(key)
    return running


@pytest.fixture
def client(server: RunningServer, lake: Lake) -> PipelineClient:
    """Of a server with some entries, and nothing archived yet."""
    known = PipelineClient(server.url, server.admin_token)
    bind(known, lake)
    for number in range(5):
        publish(server, "/orders", b"%d" % number)
    return known


def test_a_turn_that_ends_anywhere_is_brought_to_its_end_by_the_next(client: PipelineClient, lake: Lake) -> None:
    for point in POINTS:
        with pytest.raises(Crash):
            archive.run(make_here(client, lake, CrashAt(point)), {})
        publish_more(client)

        archive.run(make_here(client, open_lake(lake.place)), {})
        compact.run(make_here(client, lake), {})

        assert equals_the_log(client, lake), point
        assert unnamed(client, lake) == set(), point
        publish_more(client)


def publish_more(client: PipelineClient) -> None:
    client.call("POST", "/v1/publish", {"stream": "/orders"}, b"more")


BETWEEN = "between watermark and pointers"


def watermark_first(turn: Turn, pointers: Mapping[str, str], moved: Mapping[str, Any]) -> None:
    turn._store(**moved)
    turn._faults.at(BETWEEN)
    turn._store(tables={**turn._record.tables, **pointers})


@IN_A_FOLDER
def test_sabotage_a_watermark_that_moves_before_the_pointers_loses_rows(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turn, "_move", watermark_first)
    with pytest.raises(Crash):
        archive.run(make_here(client, lake, CrashAt(BETWEEN)), {})

    archive.run(make_here(client, lake), {})

    assert watermark(client, "events") == client.newest()
    assert not equals_the_log(client, lake)


@IN_A_FOLDER
def test_sabotage_the_same_check_finds_one_column_that_differs(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.run(make_here(client, lake), {})
    assert equals_the_log(client, lake)
    monkeypatch.setattr("tests.pipeline.by_hand.exported", later_by_a_second)

    assert not equals_the_log(client, lake)
    assert archived(client, lake) == logged(client)


def later_by_a_second(client: PipelineClient, after: int, upto: int) -> pa.Table:
    """A log whose ids and bodies are those of the lake."""
    rows = exported(client, after, upto)
    later = pc.add(rows["time"], pa.scalar(timedelta(seconds=1), pa.duration("us"))).cast(
        rows.schema.field("time").type
    )
    return rows.set_column(rows.schema.get_field_index("time"), "time", later)


# ── overtaken ──────────────────────────────────────────────────────────────────────────────────


class OvertakenAt(Faults):
    """Another driver takes the record and does all the work when this one is at a point."""

    def __init__(self, point: str, client: PipelineClient, lake: Lake) -> None:
        self._point, self._client, self._lake, self._done = point, client, lake, False

    def at(self, point: str) -> None:
        if point == self._point and not self._done:
            self._done = True
            archive.run(make_here(self._client, open_lake(self._lake.place)), {})


def test_a_driver_that_was_overtaken_adds_nothing_and_leaves_nothing(client: PipelineClient, lake: Lake) -> None:
    for point in (AFTER_FILES, BEFORE_COMMIT):
        with pytest.raises(RecordChanged, match="another driver has taken over"):
            archive.run(make_here(client, lake, OvertakenAt(point, client, lake)), {})

        assert equals_the_log(client, lake), point
        assert unnamed(client, lake) == set(), point
        publish_more(client)


@IN_A_FOLDER
def test_sabotage_a_catalog_that_reloads_and_retries_doubles_rows(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Turn._commit

    def retrying(turn: Turn, changes: list[TableChange], *given: Any, **more: Any) -> None:
        try:
            commit(turn, changes, *given, **more)
        except RecordChanged:
            kept = client.get("lake/events")
            turn._record, turn._version = _Record.read(kept.value), kept.version
            commit(turn, changes, *given, **more)

    monkeypatch.setattr(Turn, "_commit", retrying)
    monkeypatch.setattr(Turn, "_discard", lambda *given: None)

    archive.run(make_here(client, lake, OvertakenAt(AFTER_FILES, client, lake)), {})

    assert len(archived(client, lake)) == 2 * len(logged(client))


@IN_A_FOLDER
def test_a_driver_that_was_overtaken_sweeps_nothing_of_the_others(client: PipelineClient, lake: Lake) -> None:
    slow = Turn(client, lake, "events")
    archive.run(make_here(client, open_lake(lake.place)), {})

    with pytest.raises(RecordChanged):
        slow.sweep()

    assert equals_the_log(client, lake)


# ── no answer ──────────────────────────────────────────────────────────────────────────────────


class LosesAnswers(PipelineClient):
    """A server whose answer to one commit is lost, stored or not."""

    stores = True
    lost = 0

    def put(self, key: str, value: Mapping[str, Any], *, expect: int) -> StoredRecord:
        if key == "lake/events" and value.get("tables") and not self.lost:
            self.lost += 1
            if self.stores:
                super().put(key, value, expect=expect)
            raise ServerUnreachable(self.url, "cut off")
        return super().put(key, value, expect=expect)


def losing(client: PipelineClient, *, stores: bool) -> LosesAnswers:
    made = LosesAnswers(client.url, client.token)
    made.stores = stores
    return made


def test_a_commit_whose_answer_was_lost_has_landed(client: PipelineClient, lake: Lake) -> None:
    archive.run(make_here(losing(client, stores=True), lake), {})

    assert equals_the_log(client, lake)
    assert watermark(client, "events") == client.newest()


def test_a_commit_that_never_arrived_is_done_again_by_the_next_turn(client: PipelineClient, lake: Lake) -> None:
    with pytest.raises(ServerUnreachable):
        archive.run(make_here(losing(client, stores=False), lake), {})
    assert watermark(client, "events") == 0

    archive.run(make_here(client, lake), {})
    compact.run(make_here(client, lake), {})

    assert equals_the_log(client, lake)
    assert unnamed(client, lake) == set()


@IN_A_FOLDER
def test_sabotage_a_driver_that_takes_no_answer_for_a_refusal_deletes_what_was_committed(
    client: PipelineClient, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hasty(turn: Turn, **changed: Any) -> None:
        try:
            store(turn, **changed)
        except ServerUnreachable as error:
            raise RecordChanged("no answer") from error

    store = Turn._store
    monkeypatch.setattr(PipelineClient, "get", refusing_once(client))
    monkeypatch.setattr(Turn, "_store", hasty)
    with pytest.raises(RecordChanged):
        archive.run(make_here(losing(client, stores=True), lake), {})
    monkeypatch.undo()

    with pytest.raises((LakeHole, FileNotFoundError)):
        equals_the_log(client, lake)


class GoneOnBy(LosesAnswers):
    """A server that has stored a commit, does not know it, and says so when another driver has gone on from it."""

    code = place = epoch = ""

    def put(self, key: str, value: Mapping[str, Any], *, expect: int) -> StoredRecord:
        try:
            return super().put(key, value, expect=expect)
        except ServerUnreachable:
            client = PipelineClient(self.url, self.token)
            publish_more(client)
            other = open_lake(self.place)
            other.epoch = self.epoch
            archive.run(make_here(client, other), {})
            if self.code == RecordChanged.code:
                raise RecordChanged("others have changed it") from None
            raise ApiError(503, self.code, "nobody knows whether it was stored", "") from None


@IN_A_FOLDER
@pytest.mark.parametrize("code", ["engine_gone", RecordChanged.code], ids=["unknown", "sabotage: refused"])
def test_files_of_a_commit_that_may_have_been_seen_are_not_deleted(
    client: PipelineClient, lake: Lake, code: str
) -> None:
    overtaken = GoneOnBy(client.url, client.token)
    overtaken.code, overtaken.place, overtaken.epoch = code, lake.place, lake.epoch
    with pytest.raises(RecordChanged if code == RecordChanged.code else ApiError):
        archive.run(make_here(overtaken, lake), {})

    if code == RecordChanged.code:
        with pytest.raises((LakeHole, FileNotFoundError)):
            equals_the_log(client, lake)
    else:
        assert equals_the_log(client, lake)


def refusing_once(client: PipelineClient) -> Any:
    """A look at the record that fails when its client has lost an answer."""
    get = PipelineClient.get

    def look(own: PipelineClient, key: str) -> StoredRecord:
        if getattr(own, "lost", 0) == 1:
            raise ServerUnreachable(own.url, "cut off")
        return get(own, key)

    return look


# ── what was written must be what was planned ──────────────────────────────────────────────────


@IN_A_FOLDER
def test_a_file_with_too_few_rows_is_not_committed(client: PipelineClient, lake: Lake) -> None:
    newest = client.newest()
    turn = Turn(client, lake, "events")
    turn.intend(Intent(0, newest, (Slice(0, newest, "2026-11-15", newest + 1),)))

    with pytest.raises(PenstockError, match="rows of events were written, but"):
        archive.run(make_here(client, lake), {})

    assert make_here(client, lake).files("events") == []


@IN_A_FOLDER
def test_memory_and_pointers_of_other_tables_stay(client: PipelineClient, lake: Lake) -> None:
    turn = Turn(client, lake, "ledger")
    turn.intend(Intent(0, 3, ()))
    turn.publish(memory={"batches": [["n", 1, 2, 3]]})

    again = Turn(client, lake, "ledger")
    again.intend(Intent(3, 4, ()))
    again.publish()

    assert client.get("lake/ledger").value["memory"] == {"batches": [["n", 1, 2, 3]]}
    assert client.get("lake/ledger").value["holder"] == ""


# ── a store that is away ───────────────────────────────────────────────────────────────────────


class AtEvery(Faults):
    """Does something when a turn comes to a point, each time something else."""

    def __init__(self, point: str, *deeds: Any) -> None:
        self._point, self._deeds = point, list(deeds)

    def at(self, point: str) -> None:
        if point == self._point and self._deeds:
            self._deeds.pop(0)()

    @property
    def has_happened(self) -> bool:
        """Whether all was done."""
        return not self._deeds


@pytest.mark.parametrize("point", [AFTER_FILES, BEFORE_COMMIT, AFTER_COMMIT])
def test_a_store_that_is_killed_paused_and_restarted_under_an_archive_loses_and_doubles_nothing(
    server: RunningServer, point: str, s3: S3Server
) -> None:
    client, lake = PipelineClient(server.url, server.admin_token), open_lake(f"s3://lake/at-{POINTS.index(point)}")
    bind(client, lake)
    lake.store = open_store(lake.place, seconds=1)  # three times, where a driver waits for three times 20 s
    faults = AtEvery(point, s3.kill, s3.pause)
    for attempt in range(3):
        publish(server, "/orders", b"%d" % attempt)
        try:
            perform(make_here(client, lake, faults), "archive", {})
        except LakeUnreachable:
            assert point != AFTER_COMMIT or watermark(client, "events") > 0
        s3.resume()
        s3.restart() if s3.process.poll() is not None else None

    lake = open_lake(lake.place)
    archive.run(make_here(client, lake, faults), {})
    compact.run(make_here(client, lake), {})

    assert equals_the_log(client, lake)
    assert unnamed(client, lake) == set()
