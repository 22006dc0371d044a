"""`ledger`, `rollup` and `compact` may end, or be overtaken, at every point of a turn: no sum counts anything twice.

The store may be away under them, and under `erase`.

`rollup_hourly` adds, and `deliveries` counts attempts. A turn that is done twice makes no second row there, but a wrong
number; so whole rows are compared with what the log says. No JVM is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest

from penstock.iceberg.store import open_store
from penstock.pipeline import commit
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import (
    AFTER_COMMIT,
    AFTER_FILES,
    AFTER_INTENT,
    BEFORE_COMMIT,
    POINTS,
    Faults,
    TableChange,
    Turn,
)
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.loop import LakeUnreachable, perform
from penstock.pipeline.table_lease import WaitClock
from penstock.testing import RunningServer, S3Server, start_server
from tests.api.client import publish
from tests.pipeline.by_hand import Crash, CrashAt, CrashAtPoint, equals_the_log, left_over, make_here, stored
from tests.pipeline.lake_life import IN_ORDER, Life, OtherDriver, options_of, wrong_tables
from tests.pipeline.test_commit import BETWEEN, IN_A_FOLDER, AtEvery, watermark_first
from tests.pipeline.test_erase import World as SecretsInALake

SUMS = ("archive", "ledger", "rollup")
RECORDS = ("events", "ledger", "rollup")
"""Of those jobs."""
OF_COMPACTION = 24
"""Points that `compact` comes to: two commits on each of three records."""


def long(*values: object) -> Any:
    """Parameters that are tried with the marker long."""
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("cut-off") / "data") as started:
        yield started


@pytest.fixture
def client(server: RunningServer) -> PipelineClient:
    """Of a server that has forgotten what was archived before."""
    known = PipelineClient(server.url, server.admin_token)
    for key in known.list("lake/"):
        known.delete(key)
    return known


@dataclass(frozen=True)
class World:
    """A lake with something in it, a reader, and two drivers: one that is disturbed, and one that is not."""

    client: PipelineClient
    lake: Lake
    life: Life
    other: OtherDriver

    def disturb(self, job: str, faults: Faults) -> None:
        """Let the other one run the jobs before *job*, and this one that, with *faults*."""
        self.life.goes_on()
        self.other.run(*list(IN_ORDER)[: list(IN_ORDER).index(job)])
        perform(make_here(self.client, self.lake, faults), job, options_of(job))

    def wrong(self) -> list[str]:
        return wrong_tables(self.client, self.lake)


@pytest.fixture
def world(server: RunningServer, client: PipelineClient, lake: Lake) -> World:
    """With tables of two turns, so that there is something to be folded into and to be put together."""
    bind(client, lake)
    made = World(client, lake, Life(server), OtherDriver(client, lake))
    for _ in range(2):
        made.life.goes_on()
        made.other.run(*SUMS)
    return made


class OvertakenAtPoint(Faults):
    """At the *number*-th point that is come to, another driver does all the work, and sweeps."""

    def __init__(self, number: int, goes_on: Callable[[], None]) -> None:
        self.left, self._goes_on = number, goes_on

    def at(self, point: str) -> None:
        self.left -= 1
        if self.left == 0:
            self._goes_on()


EVERY_POINT = range(1, len(POINTS) + 1)
CHEAP_POINTS = {
    ("ledger", False): (3, 4), ("rollup", False): EVERY_POINT,
    ("ledger", True): (2,), ("rollup", True): (3,),
    ("compact", False): (2, 19),  # before the commit of `events`, after that of `rollup`
    ("compact", True): (10,),
}  # fmt: skip
"""Which points are tried without the marker long, by their numbers; with it, all."""

ALL_POINTS = {
    (job, overtaken): range(1, OF_COMPACTION + 1) if job == "compact" else EVERY_POINT
    for job, overtaken in CHEAP_POINTS
}


@IN_A_FOLDER
@pytest.mark.parametrize(
    ("job", "overtaken", "numbers"),
    [(*which, numbers) for which, numbers in CHEAP_POINTS.items()]
    + [long(*which, ALL_POINTS[which]) for which, numbers in CHEAP_POINTS.items() if numbers != ALL_POINTS[which]],
)
def test_a_turn_that_does_not_end_is_brought_to_its_end_and_counts_once(
    job: str, overtaken: bool, numbers: Sequence[int], world: World
) -> None:
    def goes_on() -> None:
        world.life.goes_on()
        world.other.run(*(IN_ORDER if overtaken else SUMS))

    for number in numbers:
        faults = OvertakenAtPoint(number, goes_on) if overtaken else CrashAtPoint(number)
        try:
            world.disturb(job, faults)
        except Crash:
            goes_on()
        except RecordChanged:
            assert overtaken
        assert faults.left <= 0, number
        assert world.wrong() == [], number

    faults = CrashAtPoint(max(ALL_POINTS[job, overtaken]) + 1)
    world.disturb(job, faults)
    assert faults.left == 1, "there are points that are not known here"
    world.other.run()
    assert world.wrong() == []
    assert left_over(world.client, world.lake.place) == set()
    assert any(row["attempts"] > 1 for row in stored(world.client, world.lake, "deliveries"))
    assert stored(world.client, world.lake, "positions")


@pytest.mark.parametrize("lake", ["folder"], indirect=True)
def test_a_job_that_another_driver_does_while_it_is_waited_for_has_nothing_left_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.life.goes_on()
    for job, record in zip(SUMS, RECORDS, strict=True):
        with monkeypatch.context() as patched:
            patched.setattr(commit, "own_name", lambda: "elsewhere/7/7")
            held = Turn(world.client, world.lake, record)

        def end_it(seconds: float, held: Turn = held, job: str = job) -> None:
            held.end()
            world.other.run(job)

        with monkeypatch.context() as patched:
            patched.setattr(WaitClock, "sleep", staticmethod(end_it))
            perform(make_here(world.client, world.lake), job, {})

        kept = world.client.get(f"lake/{record}").value
        assert (kept["done"], kept["holder"]) == (world.client.newest(), "")
    assert world.wrong() == []


def pointers_first(turn: Turn, pointers: Mapping[str, str], moved: Mapping[str, Any]) -> None:
    turn._store(tables={**turn._record.tables, **pointers})
    turn._faults.at(BETWEEN)
    turn._store(**moved)


@IN_A_FOLDER
@pytest.mark.parametrize(
    ("job", "move", "found"),
    [
        ("ledger", pointers_first, {"ledger", "deliveries", "rollup_hourly", "activity"}),
        ("rollup", pointers_first, {"rollup_hourly", "activity"}),
        ("rollup", watermark_first, {"rollup_hourly", "activity"}),
    ],
)
def test_sabotage_the_same_check_finds_sums_that_count_twice_or_not_at_all(
    job: str, move: Any, found: set[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as sabotaged:
        sabotaged.setattr(Turn, "_move", move)
        with pytest.raises(Crash):
            world.disturb(job, CrashAt(BETWEEN))

    world.other.run(*SUMS)

    assert set(world.wrong()) == found


# ── the store is away ─────────────────────────────────────────────────────────────────────────────

CHEAP = [("ledger", AFTER_FILES, "kill"), ("rollup", AFTER_INTENT, "pause"), ("compact", BEFORE_COMMIT, "pause")]
ALL = [
    (job, point, away)
    for job in ("ledger", "rollup", "compact")
    for point in POINTS
    for away in ("kill", "pause")
    if (job, point) != ("compact", AFTER_INTENT)  # it has none
]


@pytest.mark.parametrize("lake", ["s3"], indirect=True)
@pytest.mark.parametrize(("job", "point", "away"), [*CHEAP, *(long(*one) for one in ALL if one not in CHEAP)])
def test_a_store_that_is_away_under_a_job_and_comes_back_loses_nothing_and_counts_once(
    job: str, point: str, away: str, world: World, s3: S3Server
) -> None:
    world.lake.store = open_store(world.lake.place, seconds=1)  # three times, where a driver waits for three times 20 s
    faults = AtEvery(point, getattr(s3, away))
    with suppress(LakeUnreachable):  # not raised where nothing is left to be done at the store
        world.disturb(job, faults)
    assert faults.has_happened
    bring_back(s3)
    world.life.goes_on()

    world.other.run()

    assert world.wrong() == []
    assert left_over(world.client, world.lake.place) == set()


def bring_back(s3: S3Server) -> None:
    s3.resume()
    if s3.process.poll() is not None:
        s3.restart()


def takes_requests_for_done_first(turn: Turn, changes: list[TableChange], memory: Any = None) -> None:
    """The sabotage."""
    turn._store(memory={**turn.memory, "erased": turn.done})
    turn._commit(changes, {}, memory, release=False)


@pytest.mark.parametrize("lake", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("point", "away", "sabotaged"),
    [
        (AFTER_COMMIT, "pause", False),
        (AFTER_FILES, "pause", True),
        *(
            long(point, away, False)
            for point in POINTS[1:]
            for away in ("kill", "pause")
            if (point, away) != (AFTER_COMMIT, "pause")
        ),
    ],
)
def test_a_store_that_is_away_under_an_erasing_and_comes_back_has_nothing_left_of_what_was_erased(
    point: str, away: str, sabotaged: bool, server: RunningServer, client: PipelineClient, lake: Lake,
    s3: S3Server, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    world = SecretsInALake(server, cast("Any", lake.place))
    assert {path.split("/")[1] for path in world.grep()} == {"data", "metadata"}
    world.ask(stream=world.stream)
    lake.epoch, lake.store = world.lake.epoch, open_store(lake.place, seconds=1)
    faults = AtEvery(point, getattr(s3, away))
    with monkeypatch.context() as patched:
        if sabotaged:
            patched.setattr(Turn, "replace", takes_requests_for_done_first)
        with suppress(LakeUnreachable):
            perform(make_here(client, lake, faults), "erase", {})
    assert faults.has_happened
    bring_back(s3)
    publish(server, "/open")

    world.archive()
    world.run()

    assert bool(world.left() or world.grep()) is sabotaged
    assert equals_the_log(client, lake) is not sabotaged
