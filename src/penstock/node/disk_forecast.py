"""How many days the disk lasts, from how the log has grown since the server was started."""

from __future__ import annotations

from collections.abc import Callable

DAY_SECONDS = 86_400


class DiskForecast:
    """Is given the sizes as they are now, each half minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._began = now, now()
        self._bytes_at_start: int | None = None
        self.stored_bytes = 0
        self.days_until_full = float("inf")

    def take(self, stored_bytes: int, free_bytes: int) -> None:
        """Reckon anew; a log that has not grown lasts for ever."""
        if self._bytes_at_start is None:
            self._bytes_at_start = stored_bytes
        self.stored_bytes = stored_bytes
        grown = stored_bytes - self._bytes_at_start
        days = (self._now() - self._began) / DAY_SECONDS
        self.days_until_full = free_bytes * days / grown if grown > 0 else float("inf")
