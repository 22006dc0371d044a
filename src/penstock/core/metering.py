"""Counts that cost next to nothing: plain integers here, made into metrics when somebody asks."""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

Sample = tuple[str, str, str, float, dict[str, str]]
"""Kind (counter or gauge), name, what it means, value, labels."""


def process_samples(process: str) -> Iterator[Sample]:
    """CPU time and memory of this process, labelled with its name: for machines that run several workers."""
    used, labels = resource.getrusage(resource.RUSAGE_SELF), {"process": process}
    yield "counter", "process_cpu_seconds", "CPU time of a process.", used.ru_utime + used.ru_stime, labels
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield "gauge", "process_resident_bytes", "Memory of a process.", pages * resource.getpagesize(), labels


class Histogram:
    """How often something took how many seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.total += times * seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: how many took at most so long."""
        running, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        return buckets


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The seconds that *share* of those in *counts* (as in `Histogram.counts`) took at most; None if there are none.

    Within a bucket they are taken to be spread evenly; in the last, which has no end, they count as its beginning.
    """
    running = list(accumulate(counts))
    if not running[-1]:
        return None
    wanted = max(share * running[-1], 1e-9)  # never a bucket before the first that has any
    place = bisect_left(running, wanted)
    if place >= len(BOUNDS):
        return BOUNDS[-1]
    low = BOUNDS[place - 1] if place else 0.0
    return low + (BOUNDS[place] - low) * (wanted - (running[place] - counts[place])) / counts[place]
