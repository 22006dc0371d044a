"""A machine of several workers with defects: for tests of what the machine does about them, and of its guards.

    DEFECTS="package.module:function …" python -m tests.faults.defective_machine serve --workers 2 …

Each function replaces a method or a constant. All of them are called in each process of the machine.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.cli.worker_supervisor import Child
from penstock.node.worker_main import main
from penstock.testing import RunningServer
from tests.faults.children import ENVIRONMENT


class DefectiveServer(RunningServer):
    module = "tests.faults.defective_machine"


@contextmanager
def start_defective(data: Path, *defects: Callable[[], None], workers: int = 2) -> Iterator[RunningServer]:
    """Run a machine with these defects until the block ends. They are functions of a module's top level."""
    names = " ".join(f"{one.__module__}:{one.__name__}" for one in defects)
    server = DefectiveServer(data, ("--workers", str(workers)), {**ENVIRONMENT, "DEFECTS": names})
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    for name in os.environ["DEFECTS"].split():
        module, _, function = name.partition(":")
        getattr(importlib.import_module(module), function)()
    if len(sys.argv) > 1:
        from penstock.cli.app import run

        Child.module = "tests.faults.defective_machine"
        sys.exit(run(sys.argv[1:]))
    sys.exit(main())
