"""Processes of a machine that end again and again, or for which the system has no process."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.worker_supervisor import RETRY, STEADY_SECONDS, Child, RestartPace, WorkerSupervisor
from penstock.node.worker_main import Role
from penstock.testing import RunningServer, ServerFailed, TooLate, wait_until
from tests.api.client import publish
from tests.faults.defective_machine import start_defective
from tests.faults.test_lost_links import opened
from tests.faults.test_machine_kills import pids_of, started

KILLED = -int(signal.SIGKILL)


def refuse(*numbers: int) -> None:
    """The system refuses these of the processes that somebody asks for, the first being 1."""
    really, asked = asyncio.create_subprocess_exec, count(1)

    async def start(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        if next(asked) in numbers:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await really(*arguments, **options)

    asyncio.create_subprocess_exec = start


def refuse_some() -> None:
    """The first log process, the first life of a worker, and the two tries of the life after it was killed."""
    refuse(1, 3, 6, 7)


def refuse_the_next_life() -> None:
    """As long as all is well, each process is there at once."""
    refuse(4)


def try_once() -> None:
    """Sabotage: as if each process were there when it is asked for."""

    async def start(self: WorkerSupervisor, role: Role, name: str) -> Child:
        return await Child.start(role)

    WorkerSupervisor._start = start  # type: ignore[method-assign]


def check_next_life(server: RunningServer, within: float = 60) -> None:
    """Kill a worker: it comes again, and who is at the other one notices nothing."""
    with ExitStack() as stack:
        killed = pids_of(server, "worker")[0]
        innocent = next(one for one in opened(stack, server) if one.worker != killed)
        os.kill(killed, signal.SIGKILL)

        def is_there_again() -> bool:
            assert innocent.publish("/beside", "x") == 201
            return len(pids_of(server, "worker")) == 3

        wait_until(is_there_again, within)
        assert [publish(server, "/after").status for _ in range(8)] == [201] * 8


def test_a_process_that_the_system_refuses_is_asked_for_again(tmp_path: Path) -> None:
    with start_defective(tmp_path / "data", refuse_some) as server:
        check_next_life(server)
        refused = re.findall(r"process\.not_started node=([\w-]+) error=.*again_in=(\S+)", server.log_text())
        worker = re.findall(r"worker\.ended worker=(\d)", server.log_text())[0]
        assert (refused[0], refused[1][0][:7]) == (("log", "0.1"), "worker-")
        assert refused[2:] == [(f"worker-{worker}", "0.1"), (f"worker-{worker}", "0.2")]


def test_the_same_check_finds_a_worker_that_is_asked_for_once(tmp_path: Path) -> None:
    machine = start_defective(tmp_path / "data", refuse_the_next_life, try_once)
    with machine as server, pytest.raises(TooLate):
        check_next_life(server, within=3)


def test_asked_for_once_a_machine_would_not_start(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed), start_defective(tmp_path / "data", refuse_some, try_once):
        pass


# ── one that is killed again and again ────────────────────────────────────────────────────────


def restart_the_killed_at_once() -> None:
    """Sabotage: who is killed is started again at once, however often."""
    RestartPace.pause = lambda self, code, lived_seconds: 0.0 if code == KILLED else RETRY.delay(1, 1)  # type: ignore[method-assign]


def check_pauses(server: RunningServer) -> None:
    """Kill a worker three times, as soon as it is there: each time it comes back later."""
    for kill in range(3):
        lives = re.findall(r"worker\.started worker=1 pid=(\d+)", server.log_text())
        os.kill(int(lives[kill]), signal.SIGKILL)
        wait_until(lambda kill=kill: len(re.findall(r"worker\.started worker=1 ", server.log_text())) == kill + 2, 60)
    pauses = re.findall(rf"worker\.ended worker=1 code={KILLED} again_in=(\S+)", server.log_text())
    assert pauses == ["0.0", "0.2", "0.4"]
    assert "worker.ended worker=2" not in server.log_text()


def test_a_worker_that_is_killed_again_and_again_is_started_ever_later(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        check_pauses(server)


def test_the_same_check_finds_one_that_is_started_at_once_for_ever(tmp_path: Path) -> None:
    machine = start_defective(tmp_path / "data", restart_the_killed_at_once)
    with machine as server, pytest.raises(AssertionError):
        check_pauses(server)


def test_a_long_life_makes_good_for_those_before() -> None:
    pace = RestartPace()

    assert [pace.pause(code, 1.0) for code in (1, KILLED, 1)] == [0.1, 0.2, 0.4]
    assert pace.pause(1, STEADY_SECONDS) == 0.0
    assert [pace.pause(code, 1.0) for code in (KILLED, KILLED)] == [0.0, 0.2]
