"""A server that lacks one guard: for the tests that must notice it.

    SABOTAGE=package.module:function python -m tests.bystander.sabotaged serve …

*function* takes the guard away (it replaces a method or a constant), then the server runs as ever.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.cli.app import run
from penstock.testing import RunningServer
from tests.faults.children import ENVIRONMENT


class SabotagedServer(RunningServer):
    """`RunningServer` without one of its guards."""

    module = "tests.bystander.sabotaged"


@contextmanager
def start_sabotaged(
    data: Path, sabotage: Callable[[], None] | None, *arguments: str, **settings: object
) -> Iterator[RunningServer]:
    """As `start_server`, without the guard that *sabotage* takes away; None takes none away.

    *sabotage* must be a function of a module's top level: the server imports it by name.
    """
    pairs = [f"--set={name.replace('_', '.', 1)}={value}" for name, value in settings.items()]
    kind, environment = RunningServer, dict(ENVIRONMENT)
    if sabotage:
        kind, environment["SABOTAGE"] = SabotagedServer, f"{sabotage.__module__}:{sabotage.__name__}"
    server = kind(data, (*arguments, *pairs), environment)
    try:
        yield server
    finally:
        if server.process.poll() is None and sabotage:
            server.kill()  # a broken server need not stop in good order
        server.stop()


if __name__ == "__main__":
    module, _, name = os.environ["SABOTAGE"].partition(":")
    getattr(importlib.import_module(module), name)()
    sys.exit(run(sys.argv[1:]))
