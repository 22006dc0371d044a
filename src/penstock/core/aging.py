"""Finds the entries that are older than `log.keep`, by looking at each of them, from the oldest on.

Times in the log come from the wall clocks of several nodes, and such clocks are set now and then. So the time of one
entry says nothing about its neighbours: a binary search could hit one wrong time and drop thousands of new entries.
docs/decisions/0014-age.md says what follows from clocks that were wrong.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.core.clock import Clock
from penstock.core.log import Log
from penstock.core.registry import Registry
from penstock.limits import PAGE_ENTRIES

log = logging.getLogger("penstock.aging")

STEP_ENTRIES: Final = 100_000
"""Old entries that one look finds at most; they are trimmed before the next look."""
JUMP_SECONDS: Final = 60.0
"""A wall clock that is further off than this from where it should be by now was set."""
_JUMPED = "clock/jumped"


async def aged_upto(
    source: Log, keep_seconds: float, now_ms: int, *, page: int = PAGE_ENTRIES, step: int = STEP_ENTRIES
) -> int:
    """The id up to which all entries were published more than *keep_seconds* ago; 0 if there is none.

    Stops at the first younger entry, or after *step* old ones. An entry from the future certainly has a wrong
    time: it does not stop the search, and is trimmed together with an old entry that follows it.
    """
    before_ms, after = now_ms - int(keep_seconds * 1000), source.trimmed_upto
    found = count = 0
    while count < step and (times := await source.times(after, page)):
        after = times[-1][0]
        for id, published_ms in times:
            if published_ms < before_ms:
                found = id
                count += 1
            elif published_ms <= now_ms:
                return found
    return found


class ClockWatch:
    """Notices that the wall clock was set, and keeps that in the registry, for all nodes and the next start.

    Entries from before that moment may have any time. So nothing is trimmed by age until `log.keep` has passed since.
    """

    def __init__(self, clock: Clock, registry: Registry) -> None:
        self._clock, self._registry = clock, registry
        self._offset = self._measured()

    def _measured(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.running()

    async def seconds_since_jump(self) -> float:
        """How long ago a clock was last seen to be set; infinite if never."""
        now_ms, offset = self._clock.now_ms(), self._measured()
        record = await self._registry.get(_JUMPED)
        jumped_ms = int(record.value) if record else None
        # One in the future was written by a clock that has been set back since.
        if abs(offset - self._offset) > JUMP_SECONDS or (jumped_ms is not None and jumped_ms > now_ms):
            log.warning("clock.jumped", extra={"seconds": round(offset - self._offset)})
            await self._registry.put(_JUMPED, str(now_ms).encode())
            self._offset, jumped_ms = offset, now_ms
        return float("inf") if jumped_ms is None else (now_ms - jumped_ms) / 1000
