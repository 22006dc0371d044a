"""The job `erase`: what is erased in the log goes from the lake, whatever is cut off in between. No JVM is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.errors import InputInvalid
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import AFTER_STAGING, BEFORE_WATERMARK, Faults, Turn
from penstock.pipeline.jobs import Workplace, erase
from penstock.pipeline.replace_files import BEFORE_EXCHANGE, COMPACTING, exchange_files, workshop
from penstock.pipeline.tables import open_lake
from penstock.testing import RunningServer
from penstock.wire.lake import STAGING
from tests.api.client import ask, publish
from tests.api.lake_rig import archive, export, server_with_lake, trim

_streams = count(1)
NO_SPARK = cast("Any", None)


class World:
    """A server beside its lake, and a stream of secrets in two files of it, which no other test has."""

    def __init__(self, server: RunningServer, lake: Path) -> None:
        self.server, self._lake = server, lake
        self.stream = f"/secrets/{next(_streams)}"
        self.secrets = [f"{self.stream}-{number}".encode() for number in range(12)]
        self.ids = [id for part in (self.secrets[:6], self.secrets[6:]) for id in self._add(part)]
        self.place = Workplace(NO_SPARK, PipelineClient(server.url, server.admin_token), open_lake(lake))

    def _add(self, secrets: list[bytes]) -> list[int]:
        ids = [publish(self.server, self.stream, secret).json["id"] for secret in secrets]
        publish(self.server, "/open")
        self.archive()
        return ids

    def archive(self) -> int:
        return archive(self.server, self._lake)

    def ask(self, **wanted: object) -> None:
        assert ask(self.server, "POST", "/v1/log/erase", json.dumps(wanted).encode()).status == 200
        self.archive()

    def run(self, faults: Faults | None = None) -> dict[str, Any]:
        place = self.place
        return dict(erase.run(Workplace(NO_SPARK, place.client, place.lake, faults or Faults()), {}).data)

    def rows(self) -> pa.Table:
        """All rows of the lake."""
        lake = self.place.lake
        return pa.concat_tables(parquet.ParquetFile(lake.path(file)).read() for file in lake.files("events"))

    def left(self) -> int:
        """Secrets that are anywhere in the lake: in its tables, or in what was left behind."""
        staged = list((self.place.lake.root / STAGING).rglob("*.parquet"))
        return sum(body in self.secrets for body in self.rows()["body"].to_pylist()) + len(staged)


@pytest.fixture(scope="module")
def beside_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, Path]]:
    folder = tmp_path_factory.mktemp("erase")
    with server_with_lake(folder) as server:
        yield server, folder / "lake"


@pytest.fixture
def world(beside_lake: tuple[RunningServer, Path]) -> World:
    return World(*beside_lake)


def test_an_erased_event_is_gone_from_log_and_lake_alike(world: World) -> None:
    world.ask(ids=[world.ids[3], world.ids[8]])

    done = world.run()

    assert (done["rows"], done["files"], world.left()) == (2, 2, 10)
    assert world.rows().equals(export(world.server, 0, world.archive()).cast(world.rows().schema))
    assert world.run()["files"] == 0, "a second time there is nothing to do"


def leftover(world: World) -> Path:
    """What a compaction that was killed has left: a copy of rows."""
    left = world.place.lake.root / STAGING / f"{COMPACTING}cut-off"
    left.mkdir(exist_ok=True)
    parquet.write_table(world.rows(), left / "merged.parquet")
    return left


def test_what_a_compaction_has_left_behind_goes_and_one_that_is_under_way_only_if_something_is_erased(
    world: World,
) -> None:
    left = leftover(world)
    with workshop(world.place.lake) as under_way:
        publish(world.server, "/open")
        world.archive()
        world.run()
        assert not left.exists()
        assert under_way.exists()

        world.ask(ids=world.ids[:1])
        world.run()

        assert not under_way.exists()


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: only what replaces a file sweeps"])
def test_a_redone_turn_that_finds_nothing_to_replace_sweeps_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    world.ask(stream=world.stream)
    with pytest.raises(Crash):
        world.run(CrashAt(BEFORE_WATERMARK))  # the files are exchanged
    leftover(world)
    if sabotaged:
        monkeypatch.setattr(erase, "sweep", lambda lake, **given: 0)

    world.run()

    assert bool(world.left()) is sabotaged
    monkeypatch.undo()
    erase.sweep(world.place.lake)


def test_a_stream_is_erased_again_and_again(world: World) -> None:
    world.ask(ids=world.ids[:1])
    world.run()
    world.ask(stream=world.stream)
    world.run()

    assert world.left() == 0
    assert 2 in {file.edition for file in world.place.lake.files("events")}


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


class WatermarkFirst(erase.Replacing):
    """A build that takes the requests for done before the files are replaced."""

    def _in_order(self, name: Callable[[], None], finish: Callable[[], None]) -> None:
        finish()
        name()


@pytest.mark.parametrize(
    ("turn", "point", "left"),
    [
        (erase.Replacing, AFTER_STAGING, 0),
        (erase.Replacing, BEFORE_EXCHANGE, 0),
        (erase.Replacing, BEFORE_WATERMARK, 0),
        (WatermarkFirst, BEFORE_EXCHANGE, 12),
    ],
)
def test_an_erasing_that_was_cut_off_is_brought_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, turn: type[Turn], point: str, left: int
) -> None:
    world.ask(stream=world.stream)
    monkeypatch.setattr(erase, "Replacing", turn)
    with pytest.raises(Crash):
        world.run(CrashAt(point))
    publish(world.server, "/open")
    world.archive()

    world.run()

    assert world.left() == left


class ReplacedMeanwhile(Faults):
    """Another driver has replaced the files when this one is about to."""

    def __init__(self, world: World) -> None:
        self._world, self._done = world, False

    def at(self, point: str) -> None:
        if point == AFTER_STAGING and not self._done:
            self._done = True
            self._world.run()


def test_a_driver_that_was_overtaken_changes_nothing(world: World) -> None:
    world.ask(stream=world.stream)

    with pytest.raises(Exception, match="another driver has taken over"):
        world.run(ReplacedMeanwhile(world))

    assert world.left() == 0


def test_files_that_are_gone_are_not_replaced(world: World, tmp_path: Path) -> None:
    world.ask(stream=world.stream)
    before = world.place.lake.files("events")
    world.run()
    turn = erase.Replacing(world.place.client, world.place.lake, "other")
    made = [erase._without(world.place, turn, world.place.lake.files("events")[-1], erase.gone(()))]

    with pytest.raises(Exception, match="was changed by somebody else"):
        exchange_files(world.place.lake, before, made, tmp_path, Faults())


@pytest.mark.parametrize("options", [{"ids": "1,x"}, {"ids": ""}, {"ids": "1", "stream": "/a"}])
def test_what_is_no_list_of_ids_is_refused(world: World, options: dict[str, str]) -> None:
    with pytest.raises(InputInvalid):
        erase.run(world.place, options)
