"""Nodes that take the silence of another for a no: for the tests that must notice it."""

from __future__ import annotations

import sys
from typing import Any

from penstock.cli.app import run
from penstock.core.all_workers import Answers, OtherWorkers
from penstock.doors.sps import cluster
from penstock.errors import NotFound


async def guessing(self: OtherWorkers, *asked: Any) -> Answers[Any]:
    """Leaves out who does not answer."""
    return Answers((await _ask(self, *asked)).told)


class Offline(NotFound):
    """What a guessing node says when another does not answer."""

    def __init__(self, silent: int = 1) -> None:
        super().__init__("wire", "of a silent node")


_ask = OtherWorkers.ask

if __name__ == "__main__":
    OtherWorkers.ask = guessing  # type: ignore[method-assign]
    cluster.NodeSilent = Offline  # type: ignore[misc,assignment]
    sys.exit(run(sys.argv[1:]))
