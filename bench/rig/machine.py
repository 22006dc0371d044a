"""What the kernel says about processes, and about the machine they run on."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

_CPUCLOCK_SCHED = 2  # of a process: time on a CPU, in user and kernel, of all its threads

_LOOK = 0.25  # seconds over which the machine's load is taken
QUIET = 0.15  # cores in use that spoil no figure


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its living children so far, to the nanosecond.

    /proc/PID/stat counts in steps of 10 ms; the process' own CPU clock has no such steps.
    """
    return sum(time.clock_gettime((~one << 3) | _CPUCLOCK_SCHED) for one in _tree(pid))


def memory_kb(pid: int) -> float:
    """Memory of a process and its living children; what several share is counted once (PSS)."""
    return float(sum(_proportional_kb(one) for one in _tree(pid)))


def _proportional_kb(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


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
