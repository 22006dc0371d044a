"""`repair` or `migrate` in a process of its own, that is killed with its whole group, its JVM too.

    python -m tests.spark.killed_child URL TOKEN LAKE NUMBER repair TABLE
    python -m tests.spark.killed_child URL TOKEN LAKE NUMBER migrate OLD

NUMBER says at which of the points that it comes to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace, repair
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.old_lake import migrate
from penstock.pipeline.session import open_session
from tests.pipeline.test_killed_jobs import KillAtPoint
from tests.spark.driver_child import end_group
from tests.spark.filling import QUICK_START


def run_killed(client: PipelineClient, lake: str, number: int, job: str, what: str) -> int:
    """Run a job so; returns how its process ended."""
    command = [sys.executable, "-m", "tests.spark.killed_child", client.url, client.token, lake, str(number), job, what]
    return subprocess.run(command, start_new_session=True, check=False, cwd=Path(__file__).parents[2]).returncode


def main(url: str, token: str, location: str, number: str, job: str, what: str) -> None:
    client, lake = PipelineClient(url, token), open_lake(location)
    spark = open_session("local[2]", name="penstock-child", settings=QUICK_START)
    place = Workplace(spark, client, lake, KillAtPoint(int(number), end_group))
    if job == "migrate":
        migrate(place, Path(what))
    else:
        bind(client, lake)
        repair.run(place, {"table": what})


if __name__ == "__main__":
    main(*sys.argv[1:])
