"""The driver's loop: runs each job when it is due (`driver.EVERYTHING`), and the jobs that commands hand in.

While nothing is new the loop waits at the server, which answers at once when something comes. A job that fails is
tried again after a pause, longer each time; the other jobs go on.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from penstock.errors import OperatorError, PenstockError
from penstock.pipeline import handed_jobs, run_records
from penstock.pipeline.client import PipelineClient, RecordChanged
from penstock.pipeline.jobs import JobOutcome, Workplace, find
from penstock.pipeline.lake_identity import MARK
from penstock.pipeline.table_lease import own_name
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.pipeline")

PERIOD_SECONDS: Final = 4.0
"""From the beginning of a round to that of the next, while there is something new. An entry waits for a round, which
takes a fraction of a second: most of the tables' age is this."""

WAIT_SECONDS: Final = 20.0
"""How long one wait at the server lasts while nothing happens."""

BEAT_SECONDS: Final = 10.0
LONGEST_PAUSE: Final = 60.0
NEVER: Final = 2**62
"""An id that no entry will have."""

Clock = Callable[[], float]


class DriverBroken(PenstockError):
    """Spark's session has ended. The supervisor starts the driver again."""

    code = "spark_gone"
    remedy = "Start the driver again; nothing is lost."


class LakeUnreachable(OperatorError):
    """The lake's store does not answer, or refuses. Nothing of the job's turn is visible."""

    code = "lake_unreachable"
    remedy = "Look at the store, and at the keys; the job goes on by itself when it answers, or run it again."


@dataclass(slots=True)
class Timing:
    """When a job runs: every *period* seconds while there is something new, later after failures."""

    name: str
    period: float
    due: float = 0.0
    seen: int = -1  # the newest id when it last succeeded
    failures: int = 0
    last: dict[str, Any] = field(default_factory=dict)

    def succeeded(self, began: float, newest: int, words: str, seconds: float) -> None:
        self.failures, self.seen, self.due = 0, newest, began + self.period
        self.last = {"words": words, "seconds": round(seconds, 2), "at_ms": int(time.time() * 1000)}

    def failed(self, now: float, error: BaseException) -> None:
        self.failures += 1
        self.due = now + RetryPolicy(2 * self.period, LONGEST_PAUSE).delay(self.failures, 1.0)
        self.last = {"error": f"{type(error).__name__}: {error}"[:500], "at_ms": int(time.time() * 1000)}


class JobLoop:
    """Runs jobs when they are due, and tells the server how it does."""

    def __init__(self, place: Workplace, jobs: Mapping[str, float], *, clock: Clock = time.monotonic) -> None:
        self._place, self._clock = place, clock
        # Jobs that run seldom wait for one period first: after a start, what is new is archived before all else.
        first = {name: 0.0 if period <= PERIOD_SECONDS else clock() + period for name, period in jobs.items()}
        self._timings = [Timing(name, period, first[name]) for name, period in jobs.items()]
        self._about = _about(place)

    def state(self) -> dict[str, Any]:
        """What `/v1/pipeline` shows of this driver."""
        return {**self._about, "jobs": {one.name: one.last for one in self._timings}}

    def run(self, stopped: Callable[[], bool]) -> None:
        """Go on until *stopped*. Raises `DriverBroken` when the session is gone."""
        while not stopped():
            newest = self._place.client.newest()
            handed_jobs.run_all(self._place, perform)
            self.round(newest)
            self._wait(newest)

    def round(self, newest: int) -> None:
        """Run what is due and has something to do, in order."""
        reached, began = newest, self._clock()
        for timing in self._timings:
            if timing.seen < newest and timing.due <= self._clock():
                self._run(timing, reached, began)
            # Each job works on what the jobs before it have made, so it has seen no more than they have.
            reached = min(reached, timing.seen)

    def _wait(self, newest: int) -> None:
        """Wait at the server until something is new, due, or handed in."""
        behind = [timing for timing in self._timings if timing.seen < newest]
        pause = min((timing.due - self._clock() for timing in behind), default=WAIT_SECONDS)
        # When every job has something to do and none is due, news changes nothing.
        after = NEVER if len(behind) == len(self._timings) else newest
        if pause > 0:
            self._place.client.newest(after, wait=min(pause, WAIT_SECONDS))

    def _run(self, timing: Timing, newest: int, round_began: float) -> None:
        began = self._clock()
        try:
            outcome = perform(self._place, timing.name, {})
        except DriverBroken:
            raise
        except Exception as error:  # noqa: BLE001 - the other jobs go on, and this one is tried again
            timing.failed(self._clock(), error)
            log.warning("job %s failed: %s", timing.name, str(error)[:2000])
            return
        before = timing.seen
        # Jobs of one round are due together again: none of them waits for what another is to make in the next round.
        timing.succeeded(round_began, newest, outcome.words, self._clock() - began)
        if outcome.more:  # it has given way to the others, and goes on in the next round
            timing.seen, timing.due = before, self._clock()


def perform(place: Workplace, name: str, options: Mapping[str, str]) -> JobOutcome:
    """Run one job. Raises `DriverBroken` if Spark's session has ended, which is no fault of the job."""
    try:
        with run_records.noted(place.client, name) as note:
            note.outcome = find(name).run(place, options)
    except PenstockError:
        raise
    except OSError as error:
        raise LakeUnreachable(f"{place.lake.place}: {error}") from error
    except Exception as error:
        if _is_gone(place):
            raise DriverBroken(f"Spark does not answer: {error}") from error
        if away := _trouble_of_store(place):  # what tasks meet there, Spark tells in words of its own
            raise LakeUnreachable(f"{place.lake.place}: {away}") from error
        raise
    return note.outcome


def _trouble_of_store(place: Workplace) -> OSError | None:
    """What the store says to the driver; None if it answers."""
    try:
        place.lake.store.missing([MARK])
    except OSError as error:
        return error
    return None


def _is_gone(place: Workplace) -> bool:
    """Whether the session has ended, or its JVM has."""
    try:
        return bool(place.spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - py4j has many ways to say that nobody is there
        return True


class Heartbeat:
    """Tells the server that this driver is alive, from its own thread: a job may take long."""

    def __init__(
        self, client: PipelineClient, state: Callable[[], dict[str, Any]], period: float = BEAT_SECONDS
    ) -> None:
        # Its own client, which gives up soon: the end of the driver must not wait for a server that is gone.
        self._client, self._state, self._period = PipelineClient(client.url, client.token, patience=1), state, period
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join(5)
        with suppress(PenstockError):
            self._client.delete("pipeline/driver")

    def _beat(self) -> None:
        while not self._stopped.is_set():
            with suppress(PenstockError):
                self._say()
            self._stopped.wait(self._period)

    def _say(self) -> None:
        state = {**self._state(), "seen_ms": int(time.time() * 1000)}
        with suppress(RecordChanged):  # another driver has just written it
            self._client.put("pipeline/driver", state, expect=self._client.get("pipeline/driver").version)


def _about(place: Workplace) -> dict[str, Any]:
    spark = place.spark.sparkContext
    return {
        "pid": os.getpid(),
        "process": own_name(),
        "host": socket.gethostname(),
        "lake": place.lake.place,
        "master": spark.master,
        "spark": spark.version,
        "started_ms": int(time.time() * 1000),
    }
