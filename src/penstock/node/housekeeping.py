"""What a node does now and then by itself: expiry, months, `log.keep`, an eye on the disk.

That eye only measures (`disk_forecast.py`). Events are refused when a write fails: `engines/sqlite/disk_failures.py`.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from penstock.core.aging import ClockWatch, aged_upto
from penstock.core.clock import Clock
from penstock.core.log import Log
from penstock.core.mailbox import Mailbox
from penstock.core.months import months_in_use
from penstock.core.registry import Registry
from penstock.core.trim_limit import Bound
from penstock.node.disk_forecast import DiskForecast

log = logging.getLogger("penstock.housekeeping")

INTERVAL_SECONDS = 30.0
JUMP_PATIENCE_SECONDS = 600.0
"""How long nothing expires for good after a clock was set: one that was set wrongly is mostly set back soon."""
Part = Callable[[], Awaitable[object]]
_TRIM_SHARE = 20  # when the log is too large, this part of its ids goes at a time


class Housekeeping:
    """Runs every half minute (`round`), as a loop of `core/background.py`; a round that fails does not end the loop."""

    def __init__(
        self,
        source: Log,
        mailbox: Mailbox,
        registry: Registry,
        clock: Clock,
        data: Path,
        *,
        keep_seconds: float | None = None,
        keep_bytes: int | None = None,
        bound: Callable[[], Awaitable[Bound]] | None = None,
        node: str = "",
    ) -> None:
        """*node* is this one's name, where there are others with clocks of their own."""
        self._log, self._mailbox, self._registry, self._clock, self._data = source, mailbox, registry, clock, data
        self._keep_seconds, self._keep_bytes = keep_seconds, keep_bytes
        self._bound = bound
        self._watch = ClockWatch(clock, registry, node)
        self.daily: Callable[[], Awaitable[object]] | None = None  # asked each round; works once a day
        self.forecast = DiskForecast(time.monotonic)
        self.expired = 0
        self.trimmed = 0

    async def round(self) -> None:
        """Do everything once, also what comes after something that failed; then raises what went wrong.

        A full storage refuses new months, and must still be trimmed. Nothing expires or is trimmed by age for a while
        after the clock was set, while it is apart from other nodes', or while the registry cannot say so.
        """
        errors: list[Exception] = []
        try:
            since_jump = await self._watch.seconds_since_jump()
        except Exception as error:  # noqa: BLE001 - raised below, when the others had their turn
            errors.append(error)
            since_jump = 0.0
        parts: list[Part] = [self._make_months, partial(self._trim, since_jump), self._measure]
        if since_jump >= JUMP_PATIENCE_SECONDS:
            parts += [self._expire_entries, self._expire_records, self._each_day]
        for part in parts:
            try:
                await part()
            except Exception as error:  # noqa: BLE001 - as above
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("; ".join(map(str, errors)), errors)

    async def _each_day(self) -> None:
        if self.daily is not None:
            await self.daily()

    async def _expire_entries(self) -> None:
        """Until nothing is due; each call is a short one."""
        while gone := await self._log.expire():
            self.expired += gone

    async def _expire_records(self) -> None:
        while await self._registry.expire():
            pass

    async def _make_months(self) -> None:
        """See to this month's and the next month's mailboxes."""
        for name in months_in_use(self._clock.now_ms()):
            if await self._mailbox.make_month(name):
                log.info("month.made", extra={"month": name})

    async def _trim(self, since_jump: float) -> None:
        if self._keep_seconds is not None and since_jump >= self._keep_seconds:
            now_ms = self._clock.now_ms()
            while await self._trim_to(await aged_upto(self._log, self._keep_seconds, now_ms)):
                pass
        while self._keep_bytes is not None and await self._log.stored_bytes() > self._keep_bytes:
            span = self._log.followed - self._log.trimmed_upto
            if span <= 1 or not await self._trim_to(self._log.trimmed_upto + max(1, span // _TRIM_SHARE)):
                return

    async def _trim_to(self, upto: int) -> bool:
        """Trim as far as *upto* and the lake allow; False if that is no further than before."""
        if upto > self._log.trimmed_upto and self._bound is not None:
            bound = await self._bound()
            if bound.upto < upto:
                log.info("log.trim_held", extra={"wanted": upto, "allowed": bound.upto, "reason": bound.reason})
                upto = bound.upto
        if upto <= self._log.trimmed_upto:
            return False
        gone = await self._log.trim(upto)
        self.trimmed += gone
        log.info("log.trimmed", extra={"upto": upto, "entries": gone})
        return True

    async def _measure(self) -> None:
        self.forecast.take(await self._log.stored_bytes(), shutil.disk_usage(self._data).free)
