"""Puts a bystander beside an attack, and says whether he noticed anything.

with beside(server) as bystander:
    attack(server)
bystander.noticed_nothing()
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from penstock.testing import RunningServer
from tests.faults.children import ENVIRONMENT, command

PAUSE_MS = 250
"""The longest that the server's loop may do other work, by its CPU time, before it answers the bystander."""

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

    def noticed_nothing(self, pause_ms: float = PAUSE_MS) -> None:
        """Fail if he saw an error, missed an event, or waited behind more work of the loop than *pause_ms*."""
        seen = self.report
        print(f"bystander: {seen}")  # noqa: T201 (shown with a failure, and with -s)
        assert not seen.errors, seen
        assert seen.heard_all, seen
        assert seen.published > 1, seen
        assert seen.loop_cpu_ms <= pause_ms, seen


@contextmanager
def beside(server: RunningServer, token: str = "") -> Iterator[Watched]:
    """Run a bystander at *server* until the block ends."""
    watched = Watched()
    arguments = (server.port, token or server.admin_token, server.process.pid)
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
