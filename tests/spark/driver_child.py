"""A driver in a process of its own, that is killed with its whole group at a named point.

    python -m tests.spark.driver_child URL TOKEN LAKE POINT [rows]

It opens its session, and works when a line comes on standard input. A POINT of "" lets it finish. "in the tasks"
kills in the middle of a task, after some rows were read and written.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import Faults
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.session import open_session
from tests.spark.filling import QUICK_START

IN_TASKS = "in the tasks"
READ_BYTES = 1_000_000


def end_group(group: int = 0) -> None:
    os.killpg(group or os.getpgid(0), signal.SIGKILL)


class KillAt(Faults):
    """Ends the process group when the driver comes to a point."""

    def __init__(self, point: str) -> None:
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point:
            end_group()


class DeadlyClient(PipelineClient):
    """Ends the driver's group when a task has read the first part of its slice."""

    group = 0

    @contextmanager
    def open(self, path: str, parameters: Mapping[str, object]) -> Iterator[Any]:
        with super().open(path, parameters) as answer:
            yield DeadlyAnswer(answer, self.group)


class DeadlyAnswer:
    """An export that is read up to some bytes, and then never again."""

    closed = False

    def __init__(self, answer: Any, group: int) -> None:
        self._answer, self._group, self._left = answer, group, READ_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._answer.read(size)
        self._left -= len(data)
        if self._left < 0:
            end_group(self._group)
        return data


def kill_within(seconds: float) -> None:
    """End the group at a moment that nobody has chosen."""
    moment = random.uniform(0, seconds)
    threading.Thread(target=lambda: (time.sleep(moment), end_group()), daemon=True).start()


def main(url: str, token: str, location: str, point: str, rows: str = "") -> None:
    client = PipelineClient(url, token)
    if point == IN_TASKS:
        client = DeadlyClient(url, token)
        client.group = os.getpgid(0)  # Spark's workers are in one of their own
    spark = open_session("local[2]", name="penstock-child", settings=QUICK_START)
    sys.stdin.readline()
    lake = open_lake(location)
    bind(client, lake)
    if rows:  # other limits at each start: what was written down is redone all the same
        archive.TURN_ROWS = int(rows)  # type: ignore[misc]
        archive.FEW_ROWS = 1_000  # type: ignore[misc]  # several files in every turn
    place = Workplace(spark, client, lake, KillAt(point))
    if point.startswith("within "):
        kill_within(float(point.removeprefix("within ")))
    archive.run(place, {})
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
