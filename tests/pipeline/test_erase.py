"""The job `erase`: what is erased in the log goes from the lake, whatever is cut off in between. No JVM is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Snapshot

from penstock.errors import InputInvalid
from penstock.iceberg.files import read_batches
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import AFTER_COMMIT, AFTER_FILES, BEFORE_COMMIT, Faults, TableChange, Turn
from penstock.pipeline.erased_rows import ErasedRows
from penstock.pipeline.jobs import compact, erase, repair
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, start_server
from tests.api.client import ask, publish
from tests.api.lake_rig import export, server_with_lake, trim
from tests.lake_grep import files_with
from tests.pipeline.by_hand import archive_turn, make_here

_streams = count(100)  # as long in each test: bounds in metadata have 16 characters


class World:
    """A server beside its lake, and a stream of secrets in two files of it, which no other test has."""

    def __init__(self, server: RunningServer, place: Path | str) -> None:
        self.server, self.place = server, place
        self.client, self.lake = PipelineClient(server.url, server.admin_token), open_lake(place)
        bind(self.client, self.lake)
        number = next(_streams)
        self.stream = f"/secrets/{number}"
        self.secrets = [b"hidden-%d-%d-" % (number, one) for one in range(12)]
        self.ids = [id for part in (self.secrets[:6], self.secrets[6:]) for id in self._add(part)]

    def _add(self, secrets: list[bytes]) -> list[int]:
        ids = [publish(self.server, self.stream, one, Event_Type=one.decode()).json["id"] for one in secrets]
        publish(self.server, "/open")
        self.archive()
        return ids

    def archive(self) -> int:
        return archive_turn(self.client, self.lake)

    def ask(self, **wanted: object) -> None:
        assert ask(self.server, "POST", "/v1/log/erase", json.dumps(wanted).encode()).status == 200
        self.archive()

    def run(self, faults: Faults | None = None) -> dict[str, Any]:
        return dict(erase.run(make_here(self.client, self.lake, faults), {}).data)

    def rows(self) -> pa.Table:
        """All rows of the lake."""
        files = make_here(self.client, open_lake(self.place)).files("events")
        return pa.Table.from_batches(
            batch for one in files for batch in read_batches(self.lake.store, one.location)
        ).sort_by("id")

    def snapshots(self) -> list[Snapshot]:
        """Those of `events` that are kept."""
        return open_lake(self.place).table("events", self.client.get("lake/events").value).metadata.snapshots

    def left(self) -> int:
        """Secrets that are in the table."""
        return sum(body in self.secrets for body in self.rows()["body"].to_pylist())

    def grep(self, secrets: list[bytes] | None = None) -> list[str]:
        """Files anywhere in the store that have one of the secrets, data and metadata alike, unpacked."""
        wanted = self.secrets if secrets is None else secrets
        return files_with(self.lake.store, wanted)


@pytest.fixture(scope="module")
def beside_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    folder = tmp_path_factory.mktemp("erase")
    with server_with_lake(folder) as server:
        yield server, folder / "lake"


@pytest.fixture
def world(beside_lake: tuple[RunningServer, Path]) -> World:
    return World(*beside_lake)


@pytest.fixture(params=["folder", "s3"])
def world_on_each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world in a folder, and one on an object store."""
    if request.param == "folder":
        yield request.getfixturevalue("world")
        return
    request.getfixturevalue("s3")
    place = f"s3://lake/erase-{next(_streams)}"
    with start_server(tmp_path / "data", lake_url=place) as server:
        yield World(server, place)


def test_an_erased_event_is_gone_from_log_and_lake_alike(world: World) -> None:
    world.ask(ids=[world.ids[3], world.ids[8]])

    done = world.run()

    assert (done["rows"], done["files"], world.left()) == (2, 2, 10)
    assert world.rows().equals(export(world.server, 0, world.archive()).cast(world.rows().schema))
    assert world.run()["files"] == 0, "a second time there is nothing to do"


def remembers(turn: Turn, change: TableChange) -> Any:
    """The sabotage: the commit keeps the snapshots that name the old files."""
    now_ms = turn.table(change.table).metadata.last_updated_ms
    return turn.table(change.table).replace(change.added, change.removed, now_ms=now_ms)


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: old snapshots stay"])
def test_the_bytes_of_what_was_erased_are_nowhere_in_the_store(
    world_on_each: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    """Neither in data files, nor in the bounds of manifests, nor in what a compaction has replaced just before."""
    world = world_on_each
    compact.run(make_here(world.client, world.lake), {"all": ""})
    assert {path.split("/")[1] for path in world.grep()} == {"data", "metadata"}
    if sabotaged:
        monkeypatch.setattr(Turn, "_prepared", remembers)
    world.ask(stream=world.stream)

    world.run()

    assert world.left() == 0
    assert bool(world.grep()) is sabotaged


def forgets_nothing(change: TableChange, turn: Turn, what: ErasedRows) -> TableChange:
    """The sabotage: what the table itself has no more needs no commit."""
    return change


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: old snapshots stay"])
def test_what_an_earlier_snapshot_alone_has_is_gone_too(
    world: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    """A repair has archived the tombstones of the log meanwhile: no row of the table changes any more."""
    world.ask(stream=world.stream)
    range_of_ids = {"table": "events", "from": str(world.ids[0]), "to": str(world.ids[-1])}
    assert repair.run(make_here(world.client, world.lake), range_of_ids).exit_code == 0
    assert world.left() == 0
    assert {path.split("/")[1] for path in world.grep()} == {"data", "metadata"}
    if sabotaged:
        monkeypatch.setattr(erase, "_forgetting", forgets_nothing)

    assert world.run()["rows"] == 0

    assert bool(world.grep()) is sabotaged


def test_what_was_never_in_the_lake_costs_nobody_a_snapshot(world: World) -> None:
    publish(world.server, "/open")
    world.archive()
    erased = publish(world.server, f"/early{world.stream}").json["id"]
    world.ask(ids=[erased])
    before = len(world.snapshots())

    world.run()

    assert len(world.snapshots()) == before > 1


def leftover(world: World) -> None:
    """What a compaction that was killed has left: a copy of rows, which nothing names."""
    task = compact.merge_of(world.lake.store, "events", make_here(world.client, world.lake).files("events"))
    task.run()


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: nobody sweeps"])
def test_a_redone_turn_that_finds_nothing_to_replace_removes_what_is_left_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    leftover(world)
    world.ask(stream=world.stream)
    with pytest.raises(Crash):
        world.run(CrashAt(AFTER_COMMIT))  # the new files are in place, the old ones still there
    assert world.left() == 0
    assert world.grep() != []
    if sabotaged:
        monkeypatch.setattr(Turn, "sweep", lambda turn: 0)

    world.run()

    assert bool(world.grep()) is sabotaged


def test_a_stream_is_erased_again_and_again(world: World) -> None:
    world.ask(ids=world.ids[:1])
    world.run()
    world.ask(stream=world.stream)
    world.run()

    assert (world.left(), world.grep()) == (0, [])


def test_cold_reads_go_on_without_it(world: World) -> None:
    trim(world.server, upto=world.archive(), apply=True)
    assert len(read(world)) == 12
    world.ask(ids=world.ids[2:4])
    world.run()

    assert read(world) == [secret.decode() for n, secret in enumerate(world.secrets) if n not in (2, 3)]


def read(world: World) -> list[str]:
    entries = ask(world.server, "GET", "/v1/read", stream=world.stream, limit=100, **{"from": 0}).json["entries"]
    return [entry["data"] for entry in entries]


# ── cut off ────────────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """As if the process had ended."""


class CrashAt(Faults):
    def __init__(self, point: str) -> None:
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point:
            raise Crash(point)


@pytest.mark.parametrize("point", [AFTER_FILES, BEFORE_COMMIT, AFTER_COMMIT])
def test_an_erasing_that_was_cut_off_is_brought_to_its_end(world: World, point: str) -> None:
    world.ask(stream=world.stream)
    with pytest.raises(Crash):
        world.run(CrashAt(point))
    publish(world.server, "/open")
    world.archive()

    world.run()

    assert (world.left(), world.grep()) == (0, [])


def test_sabotage_a_build_that_takes_requests_for_done_too_early_leaves_them_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def early(turn: Turn, changes: list[TableChange], memory: Any = None) -> None:
        turn._store(memory={**turn.memory, "erased": turn.done})
        replace(turn, changes, memory)

    replace = Turn.replace
    world.ask(stream=world.stream)
    monkeypatch.setattr(Turn, "replace", early)
    with pytest.raises(Crash):
        world.run(CrashAt(BEFORE_COMMIT))
    monkeypatch.undo()

    world.run()

    assert world.left() == 12


class ReplacedMeanwhile(Faults):
    """Another driver has replaced the files when this one is about to."""

    def __init__(self, world: World) -> None:
        self._world, self._done = world, False

    def at(self, point: str) -> None:
        if point == AFTER_FILES and not self._done:
            self._done = True
            self._world.run()


def test_a_driver_that_was_overtaken_changes_nothing(world: World) -> None:
    world.ask(stream=world.stream)

    with pytest.raises(RecordChanged, match="another driver has taken over"):
        world.run(ReplacedMeanwhile(world))

    assert (world.left(), world.grep()) == (0, [])


@pytest.mark.parametrize("options", [{"ids": "1,x"}, {"ids": ""}, {"ids": "1", "stream": "/a"}])
def test_what_is_no_list_of_ids_is_refused(world: World, options: dict[str, str]) -> None:
    with pytest.raises(InputInvalid):
        erase.run(make_here(world.client, world.lake), options)
