"""A part of the rig in a process of its own: commands go in as lines, answers come out as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.rig.machine import cpu_seconds

ROOT = Path(__file__).parents[2]


class ChildFailed(Exception):
    """A part of the rig ended before its time; what it said is on standard error."""


class Child:
    """`python -m bench.rig.MODULE ARGUMENTS`; ends when the block does."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.module = module
        command = [sys.executable, "-m", f"bench.rig.{module}", *map(str, arguments)]
        path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def cpu(self) -> float:
        """Seconds of CPU it has used."""
        return cpu_seconds(self.pid)

    def tell(self, command: str) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin is not None  # noqa: S101  # it is a pipe, always
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line it prints."""
        assert self.process.stdout is not None  # noqa: S101
        line = self.process.stdout.readline()
        if not line:
            raise ChildFailed(f"bench.rig.{self.module} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.tell(command)
        return self.answer()


def reply(**values: object) -> None:
    """Answer, from within the child."""
    print(json.dumps(values), flush=True)
