"""Tests are dealt out to the end, also after a process has ended in the middle of a file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.limits import WholeFiles

BEFORE = [f"test_{number}.py::test_it" for number in range(4)]
CRASHING = [f"test_crashing.py::test_{number}" for number in range(4)]
AFTER = [f"test_later_{number}.py::test_it" for number in range(4)]
TESTS = [*BEFORE, *CRASHING, *AFTER]
ABOUT_TO_CRASH = CRASHING[1]


class Process:
    """Runs what it is given as pytest-xdist's do: a test only when the next one is known, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway, self.shutting_down = SimpleNamespace(id=name), False
        self.waiting: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.waiting += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def next_to_run(self) -> int | None:
        return self.waiting.pop(0) if len(self.waiting) > 1 or (self.waiting and self.shutting_down) else None


def deal_out(kind: type[LoadFileScheduling]) -> list[str]:
    """What is run by one process, and by the one that takes its place."""
    option = SimpleNamespace(loadscopereorder=False)
    scheduler: Any = kind(SimpleNamespace(option=option, getvalue=lambda name: ["popen"]), None)
    ran: list[str] = []
    for name in ("first", "second"):
        process = Process(name)
        scheduler.add_node(process)
        scheduler.add_node_collection(process, TESTS)
        scheduler.schedule()
        while (index := process.next_to_run()) is not None:
            ran.append(TESTS[index])
            if TESTS[index] == ABOUT_TO_CRASH and name == "first":
                assert scheduler.remove_node(process) == ABOUT_TO_CRASH
                break
            scheduler.mark_test_complete(process, index)
    return ran


@pytest.mark.parametrize(("kind", "all_run"), [(WholeFiles, True), (LoadFileScheduling, False)])
def test_what_is_left_of_a_process_that_ended_is_run_to_the_end(kind: type[LoadFileScheduling], all_run: bool) -> None:
    assert (set(deal_out(kind)) == set(TESTS)) is all_run
