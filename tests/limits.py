"""Ends a test that takes too long, whatever it hangs in, and says where: all stacks, the seed, the servers' logs.

A hang inside C code cannot be interrupted. So the process ends: a thread of faulthandler's, which needs no GIL, writes
all stacks and exits. pytest-xdist counts the test as failed and starts another process for the rest; `Ending`, in the
process that hands the tests out, ends what the ended one had started, and adds to the report what is known.
Without pytest-xdist (`pytest tests/x.py`) the stacks go to standard error, and the run ends there.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from xdist.scheduler import LoadFileScheduling

from penstock.cli.processes import VARIABLE, end_marked, new_mark, with_mark

LIMIT_SECONDS = 300.0
"""For one test with its fixtures: the slowest takes 40 s on a quiet machine. The marker `limit(seconds)` gives more."""

LONG_SECONDS = 3600.0
"""For one that is marked long."""

LOG_TAIL = 20_000  # characters of a server's log that go into a report


def limit_of(item: pytest.Item) -> float:
    """Seconds for *item*; 0 is no limit."""
    given: float | None = item.config.getoption("--limit")
    if given is not None:
        return given
    if marker := item.get_closest_marker("limit"):
        return float(marker.args[0])
    return LONG_SECONDS if item.get_closest_marker("long") else LIMIT_SECONDS


class Limits:
    """In a process that runs tests: ends it when one of them takes too long."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        given: dict[str, Any] = getattr(config, "workerinput", {})
        self._file: str = given.get("note", "")
        if mark := given.get("mark"):
            os.environ[VARIABLE] = with_mark(mark)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        seconds = limit_of(item)
        if not seconds or item.config.getoption("usepdb"):
            return (yield)
        with self._note(seconds) as note:
            faulthandler.dump_traceback_later(seconds, exit=True, file=note)
            waiting = threading.Timer(seconds - max(1.0, 0.1 * seconds), show_tasks, (note,))
            waiting.daemon = True
            waiting.start()
            try:
                return (yield)
            finally:
                waiting.cancel()
                faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def _note(self, seconds: float) -> Iterator[TextIO | int]:
        """Where the stacks go. For `Ending` they come after a line that says what it cannot know."""
        if not self._file:
            yield self._config.stash[fault_handler_stderr_fd_key]
            return
        base = str(self._config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        with Path(self._file).open("w") as note:
            note.write(json.dumps({"seconds": seconds, "began": time.time(), "base": base}) + "\n")
            note.flush()
            yield note


def show_tasks(note: TextIO | int) -> None:
    """Write where each task waits: a thread's stack shows only the loop. Without the GIL nobody gets here."""
    found = io.StringIO()
    for task in list(asyncio.tasks._all_tasks):  # type: ignore[attr-defined]
        if not task.done():
            task.print_stack(file=found)
    os.write(note if isinstance(note, int) else note.fileno(), found.getvalue().encode())


class WholeFiles(LoadFileScheduling):
    """Deals out whole files, also when a process has ended in the middle of one.

    pytest-xdist's own fails with a KeyError when two processes end at once, and one of those that take their places is
    ready first: that one gets its share when it has said which tests it found. A process begins a test only when it
    knows of the next one, or that there is none. pytest-xdist gives the process that takes another's place one file,
    perhaps of one test, and puts files back that are done, which are none: then it waits for ever.
    """

    def remove_node(self, node: Any) -> str | None:
        crashed: str | None = super().remove_node(node)
        for scope in [scope for scope, tests in self.workqueue.items() if all(tests.values())]:
            del self.workqueue[scope]
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


class Ending:
    """In the process that hands tests out: what became of one that was ended, and of what it had started."""

    def __init__(self, config: pytest.Config) -> None:
        self._seed = config.getoption("hypothesis_seed", None)
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-limits-")

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        mark = new_mark()
        node.workerinput.update(mark=mark, note=str(Path(self._folder.name, mark.strip(":"))))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return WholeFiles(config, log) if config.getoption("dist") == "loadfile" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error is not None:
            end_marked(node.workerinput["mark"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any, sched: Any) -> None:
        _is_done(sched, crashitem)
        note = Path(report.node.workerinput["note"])
        head, _, stacks = note.read_text(errors="replace").partition("\n") if note.exists() else ("", "", "")
        if not stacks:
            return  # it was not ended by a limit: it crashed
        known = json.loads(head)
        report.longrepr = f"{crashitem} took longer than its limit of {known['seconds']:g} s and was ended"
        report.sections += [("stacks when it was ended", stacks), ("seed", f"--hypothesis-seed={self._seed}")]
        report.sections += [
            (f"log of {log.name}", log.read_text(errors="replace")[-LOG_TAIL:])
            for log in sorted(Path(known["base"]).rglob("*.log"))
            if log.stat().st_mtime >= known["began"] - 1  # of servers that this test has used
        ]


def _is_done(sched: Any, crashed: str) -> None:
    """Take *crashed* for done: pytest-xdist deals out whole files, and would let the next process hang in it, too."""
    for scope, tests in list(sched.workqueue.items()):
        if crashed in tests:
            tests[crashed] = True
            if all(tests.values()):
                del sched.workqueue[scope]
