"""Ends the processes that we have started: with us, as a group, or by a mark in their environment; counts their work.

What a process starts inherits its environment, also in a session of its own and also when its parent is gone. So a mark
that is in nobody else's environment names exactly the processes below one that was ended and could not clear up.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from penstock.testing.waiting import TooLate, wait_until

VARIABLE = "STARTED_BY_TESTS_OF"  # not PENSTOCK_…: those are settings, and a server refuses one that it does not know
STACKS = "STACKS_OF_TESTS_IN"  # the folder for them
STACKS_SECONDS = 5.0  # for processes to write where they are; one that a server was forked off has no file of its own
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_TAKES_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_TRIES, _PAUSE_SECONDS = 200, 0.02  # a killed process is gone soon, and one that it has just started is found then


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a child before it becomes its program (`preexec_fn`): it gets the signal when the thread that made it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, number)


def count_orphans() -> None:
    """In a child before it becomes its program (`preexec_fn`): the CPU time of orphans below it is counted, too.

    `os.wait4` reports the CPU time of a process and of the children it waited for. Orphans are adopted by init, so
    their time is not counted. Therefore a small process stays between us and the program: it adopts the orphans, waits
    for all of them, passes our signals on, and ends with the program's status.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_TAKES_ORPHANS, 1)
    signals = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if program := os.fork():
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # by one of these `subprocess` learns that the program runs
        while (status := _wait_for_the_dead(program)) is None:
            told = signal.sigwaitinfo(signals)
            if told.si_signo != signal.SIGCHLD and told.si_pid == os.getppid():  # a terminal tells the program itself
                os.kill(program, told.si_signo)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _wait_for_the_dead(program: int) -> int | None:
    """Wait for every child that has ended; returns the status of *program* when it was among them."""
    status = None
    with suppress(ChildProcessError):
        while ended := os.waitpid(-1, os.WNOHANG):
            if ended[0] == 0:
                break
            if ended[0] == program:
                status = ended[1]
    return status


def end_group(leader: subprocess.Popen[bytes], within: float) -> None:
    """End the leader of a group of processes and all that it has started: politely, then not."""
    if leader.poll() is None:
        leader.terminate()
        with suppress(subprocess.TimeoutExpired):
            leader.wait(within)
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def new_mark() -> str:
    """A mark that nobody has."""
    return f":{secrets.token_hex(8)}:"


def with_mark(mark: str) -> str:
    """The variable's value for children that are to carry *mark* beside those of this process."""
    return os.environ.get(VARIABLE, "") + mark


def end_marked(mark: str) -> list[str]:
    """Kill all processes that carry *mark*; returns what they were. It is never this one."""
    ended: dict[int, str] = {}
    for _ in range(_TRIES):
        found = [process for process in _marked(mark) if process != os.getpid()]
        if not found:
            break
        for process in found:
            ended.setdefault(process, _command(process))
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    return [f"{process} {command}" for process, command in ended.items()]


def write_stacks(mark: str, folder: Path) -> list[Path]:
    """Have the processes that carry *mark* write their stacks, if they are ready to: each into a file of its own."""
    asked = list[Path]()
    for process in _marked(mark):
        if _catches(process, signal.SIGUSR1):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGUSR1)
                asked.append(stacks_file(folder, process))
    with suppress(TooLate):
        wait_until(lambda: all(one.exists() and one.stat().st_size for one in asked), within=STACKS_SECONDS)
    return [one for one in asked if one.exists()]


def stacks_file(folder: str | Path, process: int) -> Path:
    """Where *process* writes its stacks at SIGUSR1, when `STACKS` names the folder (tests/conftest.py)."""
    return Path(folder, f"{process}.stacks")


def _catches(process: int, number: signal.Signals) -> bool:
    """Whether it has a handler: without one, most signals end a process."""
    with suppress(OSError):
        caught = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if "SigCgt" in line)
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def _marked(mark: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone meanwhile, or another user's
                if mark.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)


def _command(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    return ""
