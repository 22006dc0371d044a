"""Time comes in as an argument; this is where it comes from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time. Tests give one that they move by hand."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC: for people and expiry, never for ordering."""
        ...


class WallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_763_200_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)
