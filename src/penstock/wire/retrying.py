"""When to try again: ever later, after failures in a row. Pure: chance comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds: a server that asks for more is tried once an hour all the same."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait before something is tried again: twice as long after each failure in a row."""

    first: float  # seconds before the first retry
    longest: float  # seconds between two retries

    def delay(self, failures: int, chance: float, asked: float | None = None) -> float:
        """Seconds to wait after so many *failures* in a row.

        *chance* from 0 to 1 spreads those who failed together over the second half of the time. What the other side
        *asked* for (`Retry-After`) counts instead, up to an hour; 0 asks for nothing.
        """
        if asked:
            return min(asked, LONGEST_RETRY_AFTER)
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 40)) * (0.5 + 0.5 * chance)


def parse_retry_after(text: str) -> float | None:
    """A `Retry-After` in seconds. None for a date, and for what is none: the policy's own delay is as good."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
