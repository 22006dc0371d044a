"""Two processes run the jobs on one lake; one is stopped within a turn, and goes on later. No JVM is needed.

Both have the lease that drivers have, with shorter times: whoever is stopped is overtaken after a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline import table_lease
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.commit import AFTER_COMMIT, BEFORE_COMMIT, Faults, Turn, _Record, watermark
from penstock.pipeline.lake import Lake, open_lake
from penstock.pipeline.lake_identity import bind
from penstock.testing import RunningServer, wait_until
from tests.pipeline.by_hand import left_over, make_here
from tests.pipeline.lake_life import IN_ORDER, Life, OtherDriver, options_of, wrong_tables

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


class StopsIn(Faults):
    """Stops the whole process at the first commit of a job, and counts the commits."""

    def __init__(self, job: str, commits: Any) -> None:
        self._job, self._commits, self.now = job, commits, ""

    def at(self, point: str) -> None:
        if point == AFTER_COMMIT and self.now != "compact":  # which commits whether there is something new or not
            self._commits.value += 1
        if point == BEFORE_COMMIT and self._job == self.now:
            self._job = ""
            os.kill(os.getpid(), signal.SIGSTOP)


def drive(client: PipelineClient, lake: Lake, faults: StopsIn, refused: Any, ended: Any, jobs: tuple[str, ...]) -> None:
    """What a driver's loop does, until it is to end."""
    table_lease.LEASE_SECONDS, table_lease.LOOK_SECONDS, table_lease.BEAT_SECONDS = 1.0, 0.02, 0.2  # type: ignore[misc]
    place, newest = make_here(client, lake, faults), 0
    while not ended.is_set():
        for faults.now in jobs:
            try:
                IN_ORDER[faults.now].run(place, options_of(faults.now))
            except RecordChanged:
                refused.value += 1
        newest = client.newest(newest, wait=0.2)


def drive_retrying(*given: Any) -> None:
    """The sabotage: a driver that was refused reloads the record, and commits on top of what the other has done."""
    commit = Turn._commit

    def retrying(turn: Turn, *changes: Any, **more: Any) -> None:
        try:
            commit(turn, *changes, **more)
        except RecordChanged:
            kept = turn._client.get(turn._key)
            turn._record, turn._version = _Record.read(kept.value), kept.version
            commit(turn, *changes, **more)

    Turn._commit = retrying  # type: ignore[method-assign]
    Turn._discard = lambda *_: None  # type: ignore[method-assign]
    drive(*given)


class RunningDriver:
    """A driver in a process of its own."""

    def __init__(self, client: PipelineClient, lake: Lake, *, run: Any = drive, stops_in: str = "", jobs: Any) -> None:
        self._commits, self._refused, self._ended = _PROCESSES.Value("i"), _PROCESSES.Value("i"), _PROCESSES.Event()
        given = (client.url, client.token, lake.place, lake.epoch, run, stops_in)
        self.process = _PROCESSES.Process(
            target=begin, args=(given, self._commits, self._refused, self._ended, tuple(jobs))
        )
        self.process.start()

    @property
    def commits(self) -> int:
        return int(self._commits.value)

    @property
    def refused(self) -> int:
        return int(self._refused.value)

    def has_stopped(self) -> bool:
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def go_on(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGCONT)

    def end(self) -> int | None:
        self._ended.set()
        self.process.join(60)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)


def begin(given: Any, commits: Any, refused: Any, ended: Any, jobs: tuple[str, ...]) -> None:
    """In the process: open what cannot be sent to it."""
    url, token, place, epoch, run, stops_in = given
    lake = open_lake(place)
    lake.epoch = epoch
    run(PipelineClient(url, token), lake, StopsIn(stops_in, commits), refused, ended, jobs)


@contextmanager
def running(*drivers: RunningDriver) -> Iterator[None]:
    try:
        yield
    finally:
        for one in drivers:
            one.kill()


def is_done(client: PipelineClient, upto: int) -> bool:
    return all(watermark(client, name) >= upto for name in ("events", "ledger", "rollup"))


def let_them_work(client: PipelineClient, life: Life) -> None:
    life.goes_on()
    newest = client.newest()
    wait_until(lambda: is_done(client, newest))


@pytest.mark.parametrize(
    "job", ["rollup", *(pytest.param(job, marks=pytest.mark.long) for job in ("archive", "ledger", "compact"))]
)
def test_two_drivers_at_once_of_which_one_stops_and_goes_on_count_everything_once(
    job: str, server: RunningServer, tmp_path: Path
) -> None:
    client, lake, life = PipelineClient(server.url, server.admin_token), open_lake(tmp_path / "lake"), Life(server)
    bind(client, lake)
    life.goes_on()
    first = RunningDriver(client, lake, stops_in=job, jobs=IN_ORDER)
    with running(first):
        wait_until(first.has_stopped)
        life.goes_on()
        newest = client.newest()
        second = RunningDriver(client, lake, jobs=IN_ORDER)
        with running(second):
            wait_until(lambda: is_done(client, newest))  # it has taken over
            first.go_on()
            wait_until(lambda: first.refused)
            for _ in range(3):
                let_them_work(client, life)
            assert second.end() == 0
        before = first.commits
        let_them_work(client, life)  # whoever was refused has not fallen out
        assert first.commits > before
        assert first.end() == 0

    OtherDriver(client, lake).run()
    assert wrong_tables(client, lake) == []
    assert left_over(client, lake.place) == set()


def test_sabotage_the_same_check_finds_a_driver_that_reloads_and_retries(server: RunningServer, tmp_path: Path) -> None:
    client, lake, life = PipelineClient(server.url, server.admin_token), open_lake(tmp_path / "lake"), Life(server)
    bind(client, lake)
    life.goes_on()
    jobs = ("archive", "ledger", "rollup")
    first = RunningDriver(client, lake, run=drive_retrying, stops_in="ledger", jobs=jobs)
    with running(first):
        wait_until(first.has_stopped)
        second = RunningDriver(client, lake, jobs=jobs)
        with running(second):
            wait_until(lambda: is_done(client, client.newest()))
            assert second.end() == 0
        before = first.commits
        first.go_on()
        wait_until(lambda: first.commits > before)

    assert {"ledger", "deliveries"} <= set(wrong_tables(client, lake))
