"""A driver in a process of its own, that is killed with its whole group at a named point.

    python -m tests.spark.driver_child URL TOKEN LAKE POINT [rows]

A POINT of "" lets it finish. "in the tasks" kills in the middle of a task, after some rows were read.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from penstock.pipeline.client import Client
from penstock.pipeline.commit import Faults, bind
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.session import open_session
from penstock.pipeline.tables import open_lake
from tests.spark.filling import QUICK_START

IN_TASKS = "in the tasks"


def end_group(group: int = 0) -> None:
    os.killpg(group or os.getpgid(0), signal.SIGKILL)


class KillAt(Faults):
    """Ends the process group when the driver comes to a point."""

    def __init__(self, point: str) -> None:
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point:
            end_group()


def deadly(frame: DataFrame) -> DataFrame:
    """The archive's transform, which ends the driver's group when the first rows have come through a task."""
    group = os.getpgid(0)  # Spark's workers are in one of their own

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number:
                end_group(group)
            yield batch

    return archive.transform(frame).mapInArrow(pass_on, frame.schema)


def kill_within(seconds: float) -> None:
    """End the group at a moment that nobody has chosen."""
    moment = random.uniform(0, seconds)
    threading.Thread(target=lambda: (time.sleep(moment), end_group()), daemon=True).start()


def main(url: str, token: str, location: str, point: str, rows: str = "") -> None:
    client = Client(url, token)
    lake = open_lake(Path(location))
    bind(client, lake)
    spark = open_session("local[2]", name="penstock-child", settings=QUICK_START)
    if rows:  # other limits at each start: what was written down is redone all the same
        archive.TURN_ROWS = int(rows)  # type: ignore[misc]
        archive.FEW_ROWS = 1_000  # type: ignore[misc]  # several files in every turn
    place = Workplace(spark, client, lake, KillAt(point))
    if point.startswith("within "):
        kill_within(float(point.removeprefix("within ")))
    archive.run(place, {}, transform=deadly if point == IN_TASKS else archive.transform)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
