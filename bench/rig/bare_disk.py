"""The floor of durable publishing: nothing but write and fdatasync.

The file is written over in place, so that a sync costs no change of its size or its extents: no log on
this disk can be faster with one sync per group.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Syncs:
    """What the disk took."""

    rate: float  # events a second
    p50_ms: float  # of one group


def bare_syncs(folder: Path, group: int, size: int, seconds: float) -> Syncs:
    """Write groups of *group* events of *size* bytes, each synced, for *seconds*."""
    data, times = b"x" * (group * size), []
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
    try:
        _fill(fd)
        began = time.perf_counter()
        at = 0
        while (now := time.perf_counter()) - began < seconds:
            os.pwrite(fd, data, at)
            os.fdatasync(fd)
            times.append(time.perf_counter() - now)
            at = at + len(data) if at + 2 * len(data) < _FILE_BYTES else 0
    finally:
        os.close(fd)
    spent = sum(times)
    return Syncs(group * len(times) / spent, 1000 * sorted(times)[len(times) // 2])


def _fill(fd: int) -> None:
    if os.fstat(fd).st_size < _FILE_BYTES:
        os.pwrite(fd, bytes(_FILE_BYTES), 0)
        os.fsync(fd)
