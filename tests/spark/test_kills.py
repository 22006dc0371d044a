"""The driver's process group is killed at named points; afterwards the lake equals the log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.iceberg.files import WrittenWrong
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import BEFORE_COMMIT, POINTS, Intent, Slice, Turn
from penstock.pipeline.jobs import Workplace, archive
from penstock.testing import RunningServer
from tests.spark.conftest import make_place
from tests.spark.driver_child import IN_TASKS
from tests.spark.filling import differences, fill

ROWS = 20_000
KILLED = -signal.SIGKILL
SIX = (*POINTS[:2], IN_TASKS, *POINTS[2:])
TWO = (IN_TASKS, BEFORE_COMMIT)
"""While Spark works, and when it has. tests/pipeline/test_commit.py ends a turn at every point, without it."""


@contextmanager
def driver(server: RunningServer, lake: Path, point: str, rows: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver that opens its session, waits to be told to work, and ends at *point*."""
    arguments = [server.url, server.admin_token, str(lake), point, str(rows)]
    with (lake.parent / "child.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver_child", *arguments],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def let_work(child: subprocess.Popen[bytes]) -> int:
    """Let a driver work; returns how it ended."""
    child.communicate(b"go\n", timeout=120)
    return child.returncode


@pytest.mark.parametrize("points", [TWO, pytest.param(SIX, marks=pytest.mark.long)], ids=["two", "six"])
def test_a_driver_that_is_killed_anywhere_loses_and_doubles_nothing(
    spark: SparkSession, server: RunningServer, tmp_path: Path, points: tuple[str, ...]
) -> None:
    client, lake = PipelineClient(server.url, server.admin_token), tmp_path / "lake"
    with ExitStack() as stack:
        # Given drivers, of which one opens its session while the one before it works
        drivers = (
            stack.enter_context(driver(server, lake, point, 17_000 + 2_000 * number))
            for number, point in enumerate(points)
        )
        waiting = next(drivers)
        for number, point in enumerate(points):
            child, waiting = waiting, next(drivers, waiting)
            # and more than each of them gets to, so that every one dies in work of its own
            fill(client, ROWS, seed=number)
            # When the driver's group is killed at that point, each time under other limits
            assert let_work(child) == KILLED, point
    # Then the next driver brings it to its end, and nothing is missing or there twice
    archive.run(make_place(spark, server, lake), {})
    assert differences(client, lake) == []


@pytest.mark.long
def test_twenty_kills_at_random_moments(server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    client, lake = PipelineClient(server.url, server.admin_token), tmp_path / "lake"
    randomness = random.Random(request.config.getoption("--hypothesis-seed") or 1)
    for number in range(20):
        fill(client, ROWS, seed=number)
        point, rows = f"within {randomness.uniform(2, 8):.1f}", randomness.randrange(5_000, 50_000)
        with driver(server, lake, point, rows) as child:
            let_work(child)

    with driver(server, lake, "", 60_000) as child:
        assert let_work(child) == 0
    assert differences(client, lake) == []


@pytest.mark.parametrize("transform", [None, archive.transform], ids=["copied", "through frames"])
def test_a_file_with_too_few_rows_is_not_committed(place: Workplace, transform: archive.Transform | None) -> None:
    fill(place.client, 1_000)
    newest = place.client.newest()
    # Given an intent that promises a row more than there is
    turn = Turn(place.client, place.lake, "events")
    turn.intend(Intent(0, newest, (Slice(0, newest, "2026-11-15", newest + 1),)))

    with pytest.raises(WrittenWrong, match="rows of events were written, but"):
        archive.run(place, {}, transform=transform)

    assert place.files("events") == []
