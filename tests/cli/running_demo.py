"""`./penstock demo` in a process of its own, watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.cli.processes import VARIABLE, _command, _marked, end_marked, new_mark, with_mark
from penstock.testing import wait_until
from tests.faults.children import ENVIRONMENT

WITHIN = 100  # seconds for a step of the story, on a machine that does much else


class Demo:
    """A demo that runs; all it starts carries a mark."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        self.folder, self._output = folder, folder / "output"
        self._mark = new_mark()
        mine = {**ENVIRONMENT, **environment, "TMPDIR": str(folder / "tmp"), VARIABLE: with_mark(self._mark)}
        (folder / "tmp").mkdir()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=mine,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> str:
        wait_until(lambda: text in self.said or self.process.poll() is not None, within=WITHIN)
        assert text in self.said, self.said
        return self.said

    def interrupt(self) -> None:
        """As a terminal does it: all that it has started hear it, too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait(WITHIN)

    def commands(self) -> list[str]:
        """What all that it has started was started as."""
        return [_command(pid) for pid in _marked(self._mark)]

    def clear_away(self) -> list[str]:
        """Kill what it has left running; returns what that was."""
        return end_marked(self._mark)

    def left_behind(self) -> list[object]:
        """Processes and files that the demo has not cleared away."""
        running = [pid for pid in _marked(self._mark) if pid != os.getpid()]
        return [*running, *(self.folder / "tmp").iterdir()]


@contextmanager
def started(folder: Path, *command: str, **environment: str) -> Iterator[Demo]:
    demo = Demo(folder, *command, **environment)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.communicate()
