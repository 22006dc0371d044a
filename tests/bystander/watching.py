"""Puts a bystander beside an attack, and says whether he noticed anything.

with beside(server) as bystander:
    attack(server)
bystander.noticed_nothing()
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import msgspec

from penstock.testing import RunningServer
from tests.faults.children import ENVIRONMENT, command

PAUSE_MS = 250
"""The longest that the server's loop may do other work, by its CPU time, before it answers the bystander."""

USUAL_MS = 13.5
"""CPU time of `some_work` on the machine that PAUSE_MS was chosen for. One that is twice as quick does the harm of a
missing guard in half the time, and one that is half as quick takes twice as long for what is no harm."""

END_SECONDS = 60


class Report(msgspec.Struct):
    """What the bystander saw."""

    published: int
    errors: list[str]
    heard_all: bool
    loop_cpu_ms: float  # most CPU of the server's loop between a request and its answer
    wall_ms: float  # the longest wait by the clock: for people
    median_ms: float


class Watched:
    """A bystander, and after the block its report."""

    report: Report

    def noticed_nothing(self) -> None:
        """Fail if he saw an error, missed an event, or waited behind more work of the loop than is done in PAUSE_MS."""
        seen, pause_ms = self.report, PAUSE_MS * slowness()
        assert not seen.errors, seen
        assert seen.heard_all, seen
        assert seen.published > 1, seen
        assert seen.loop_cpu_ms <= pause_ms, seen
        print(f"bystander: {seen}")  # noqa: T201 (tests/conftest.py sums them up)


@cache
def slowness() -> float:
    """How much longer this machine computes than the usual one."""
    return median(some_work() for _ in range(5)) / USUAL_MS


def some_work() -> float:
    """Milliseconds of CPU."""
    begun = time.thread_time()
    for _ in range(200):
        json.loads(json.dumps({str(number): [number, "x" * 20] for number in range(100)}))
    return (time.thread_time() - begun) * 1e3


def processes_of(server: RunningServer) -> list[int]:
    """Those with a loop that somebody waits for: the server's own, or its log process and its workers."""
    pid = server.process.pid
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    parts = [int(one) for one in below if b"penstock.node.worker_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return parts or [pid]


@contextmanager
def beside(server: RunningServer, token: str = "") -> Iterator[Watched]:
    """Run a bystander at *server* until the block ends."""
    watched = Watched()
    arguments = (server.port, token or server.admin_token, ",".join(map(str, processes_of(server))))
    child = subprocess.Popen(
        command("tests.bystander.client", *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    with child:
        try:
            ready = child.stdout.readline() if child.stdout else ""
            assert ready == "ready\n", f"the bystander did not start: {ready!r}"
            yield watched
            said, _ = child.communicate(timeout=END_SECONDS)
            watched.report = msgspec.json.decode(said, type=Report)
        finally:
            child.kill()
