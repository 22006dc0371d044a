"""The clocks: a node's, and one that tests set by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time. Tests give one that they move by hand."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC: for people and expiry, never for ordering."""
        ...

    def running(self) -> float:
        """Seconds that have passed since some moment; setting the wall clock does not change them."""
        ...


class WallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def running(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine is suspended


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_763_200_000_000) -> None:
        self._now_ms, self._running = now_ms, 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def running(self) -> float:
        return self._running

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ms += int(seconds * 1000)
        self._running += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock; no time passes."""
        self._now_ms += int(seconds * 1000)
