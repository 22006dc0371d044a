"""What the kernel says about processes, and about the machine they run on."""

from __future__ import annotations

import os
import platform
import re
import time
from contextlib import suppress
from pathlib import Path

_CPUCLOCK_SCHED = 2  # of a process: time on a CPU, in user and kernel, of all its threads

_LOOK = 0.25  # seconds over which the machine's load is taken
QUIET = 0.15  # cores in use that spoil no figure


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children so far, those that have ended included.

    /proc/PID/stat counts in steps of 10 ms; the process' own CPU clock has no such steps. Of children that have
    ended the former is all there is.
    """
    return sum(_own_seconds(one) + _ended_seconds(one) for one in _tree(pid))


class CpuMeter:
    """CPU time of a process and its children from now on; it never falls.

    The sum that `cpu_seconds` gives does, when a child ends and nobody takes note of it: Spark's Python daemon ignores
    the end of its workers, and then the kernel adds their time to no one.
    """

    def __init__(self, pid: int, without: int = 0) -> None:
        """*without* is a child whose time, and its children's, is not to count."""
        self._pid, self._without = pid, without
        self._own, self._ended = self._look()

    def seconds(self) -> float:
        """What was used since the beginning."""
        own, ended = self._look()
        gone = sum(spent for pid, spent in self._own.items() if pid not in own)
        alive = sum(max(0.0, spent - self._own.get(pid, 0.0)) for pid, spent in own.items())
        return alive + max(0.0, ended - self._ended - gone)

    def _look(self) -> tuple[dict[int, float], float]:
        """The time of each process, and of those that have ended together."""
        left_out = set(_tree(self._without)) if self._without else set()
        tree = [one for one in _tree(self._pid) if one not in left_out]
        return {one: _own_seconds(one) for one in tree}, sum(_ended_seconds(one) for one in tree)


def memory_kb(pid: int) -> float:
    """Memory of a process and its living children; what several share is counted once (PSS)."""
    return float(sum(_smaps_kb(one, "Pss") for one in _tree(pid)))


def resident_kb(pid: int) -> float:
    """Memory of a process and its living children; what several share is counted for each of them (RSS)."""
    return float(sum(_smaps_kb(one, "Rss") for one in _tree(pid)))


def _own_seconds(pid: int) -> float:
    with suppress(OSError):  # it has ended since it was found
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    return 0.0


def _ended_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime, cstime
    return 0.0


def _smaps_kb(pid: int, kind: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with suppress(OSError):  # it has ended since it was found
            for task in Path(f"/proc/{one}/task").iterdir():
                found += _children(task)
    return found


def _children(task: Path) -> list[int]:
    with suppress(OSError):  # threads come and go
        return [int(child) for child in (task / "children").read_text().split()]
    return []


class Neighbours:
    """Tells how much of the machine others use while something is measured."""

    def __init__(self) -> None:
        self._began, self._busy = time.monotonic(), busy_seconds()

    def cores(self, ours: float) -> float:
        """Cores that others have used since the start; *ours* is CPU time of those who are measured."""
        return max(0.0, busy_seconds() - self._busy - ours) / (time.monotonic() - self._began)


def busy_seconds() -> float:
    """CPU time that everybody on this machine has used so far."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, _stolen, *_guests = map(int, fields)
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(within: float) -> float:
    """Return when the machine does next to nothing, or after *within* seconds; the cores in use then."""
    deadline = time.monotonic() + within
    while True:
        began, before = time.monotonic(), busy_seconds()
        time.sleep(_LOOK)
        cores = (busy_seconds() - before) / (time.monotonic() - began)
        if cores < QUIET or time.monotonic() > deadline:
            return cores


def describe() -> str:
    """One line that tells this machine from others."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{_cpu_model()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}, Python {platform.python_version()}"


def _cpu_model() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
