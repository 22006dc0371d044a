"""The driver's process: `python -m penstock.pipeline.driver --url URL --lake DIR`; the token is in PENSTOCK_TOKEN.

`spark-submit --py-files penstock-spark.zip …/driver.py --url URL --lake DIR --jobs archive --once` runs on a cluster.

Ends on SIGTERM at once, wherever it is: every step of the commit protocol may be cut off.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.errors import PenstockError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import JobOutcome, Workplace
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.loop import PERIOD_SECONDS, Heartbeat, JobLoop, perform
from penstock.pipeline.session import LOCAL, open_session

log = logging.getLogger("penstock.pipeline")

EVERYTHING: Final = {
    "archive": PERIOD_SECONDS,
    "ledger": PERIOD_SECONDS,
    "typed": PERIOD_SECONDS,
    "rollup": PERIOD_SECONDS,
    "erase": 60.0,
    "compact": 1800.0,
}
"""What `up` runs, and every how many seconds. Without compaction a day would have 21,600 files of each table."""


class Stopped(BaseException):
    """SIGTERM came."""


def main(arguments: Sequence[str]) -> int:
    """Run the loop until SIGTERM. Exit code 1 when it must be started again."""
    parser = argparse.ArgumentParser(prog="penstock.pipeline.driver")
    for name, default in (("--url", None), ("--lake", None), ("--master", LOCAL), ("--jobs", ",".join(EVERYTHING))):
        parser.add_argument(name, default=default, required=default is None)
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    client = PipelineClient(given.url, os.environ["PENSTOCK_TOKEN"])
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; `up` decides when the driver ends
    try:
        jobs = {name: EVERYTHING.get(name, PERIOD_SECONDS) for name in given.jobs.split(",")}
        return drive(client, given.lake, given.master, jobs, once=given.once)
    except Stopped:
        return 0
    except PenstockError as error:
        log.error("driver.ended: %s — %s", error, error.remedy)
        return 1
    except ImportError as error:  # Spark itself asks for pandas where rows come as Arrow
        log.error("driver.ended: %s — Install it where driver and workers run: pip install pyarrow pandas", error)
        return 1


def drive(client: PipelineClient, location: str, master: str, jobs: dict[str, float], *, once: bool = False) -> int:
    """Make the session, and run *jobs* in the loop, or once each."""
    lake = open_lake(location)
    bind(client, lake)
    spark = open_session(master)
    place = Workplace(spark, client, lake)
    loop = JobLoop(place, jobs)
    try:
        if once:
            return max(_report(perform(place, name, {})) for name in jobs)
        with Heartbeat(client, loop.state):
            loop.run(lambda: False)
    finally:
        with suppress(Exception):  # it may have ended already
            spark.stop()
    return 0


def _report(outcome: JobOutcome) -> int:
    print(outcome.words, flush=True)  # noqa: T201 - the command's output
    return outcome.exit_code


def _stop(number: int, frame: object) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
