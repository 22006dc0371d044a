"""Finds the entries that are older than `log.keep`, by looking at each of them, from the oldest on.

Times in the log come from the wall clocks of several nodes, and such clocks are set now and then. So the time of one
entry says nothing about its neighbours: a binary search could hit one wrong time and drop thousands of new entries.
docs/decisions/0014-age.md says what follows from clocks that were wrong.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from penstock.core.clock import Clock
from penstock.core.log import Log
from penstock.core.registry import Registry, each
from penstock.errors import PenstockError
from penstock.limits import PAGE_ENTRIES

log = logging.getLogger("penstock.aging")

STEP_ENTRIES: Final = 100_000
"""Old entries that one look finds at most; they are trimmed before the next look."""
JUMP_SECONDS: Final = 60.0
"""A wall clock that is further off than this from where it should be by now was set."""
APART_SECONDS: Final = 2 * JUMP_SECONDS
"""Two nodes' clocks that are further apart than this: one of them is wrong. What another wrote down of its clock may be
half a minute old."""
LISTEN_ROUNDS: Final = 4
"""Rounds, of half a minute each, in which no clock may have been seen to be apart: so often a node that lives has
written its own down, a busy one, too."""
FORGET_ROUNDS: Final = 24 * 120
"""Rounds, a day of them, after which a clock that nobody has written down anew is forgotten: each start of a node whose
name is not set gives it another one."""
_JUMPED, _CLOCKS = "clock/jumped", "clock/nodes/"


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

    A clock that was wrong from the start does not jump. So each *node* of a cluster writes its own down, and what it
    reads of those that changed theirs tells whether one is wrong; which one it is nobody can tell.
    """

    def __init__(self, clock: Clock, registry: Registry, node: str = "") -> None:
        """Without *node* there are no others."""
        self._clock, self._registry, self._node = clock, registry, node
        self._seen: dict[str, tuple[int, int]] = {}  # of each clock's record: its version, and rounds since that came
        self._holding = LISTEN_ROUNDS if node else 0
        self._offset = self._measured()

    def _measured(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.running()

    async def seconds_since_jump(self) -> float:
        """How long ago a clock was last seen to be set, or to be apart from others'; infinite if never."""
        now_ms, offset = self._clock.now_ms(), self._measured()
        record = await self._registry.get(_JUMPED)
        jumped_ms = int(record.value) if record else None
        # One in the future was written by a clock that has been set back since.
        if abs(offset - self._offset) > JUMP_SECONDS or (jumped_ms is not None and jumped_ms > now_ms):
            log.warning("clock.jumped", extra={"seconds": round(offset - self._offset)})
            await self._registry.put(_JUMPED, str(now_ms).encode())
            self._offset, jumped_ms = offset, now_ms
        if self._node and await self._may_be_apart(now_ms):
            return 0.0
        return float("inf") if jumped_ms is None else (now_ms - jumped_ms) / 1000

    async def _may_be_apart(self, now_ms: int) -> bool:
        """Write this node's clock down, and compare it with those that others have written down since the last time."""
        with suppress(PenstockError):  # a full storage must still be trimmed
            await self._registry.put(_CLOCKS + self._node, str(now_ms).encode())
        before, self._seen = self._seen, {}
        self._holding = max(0, self._holding - 1)
        async for record in each(self._registry, _CLOCKS):
            version, rounds = before.get(record.key, (record.version, 0))
            lives = version != record.version
            self._seen[record.key] = record.version, 0 if lives else rounds + 1
            apart = (now_ms - int(record.value)) / 1000
            if lives and record.key != _CLOCKS + self._node and abs(apart) > APART_SECONDS:
                self._holding = LISTEN_ROUNDS
                node = record.key.removeprefix(_CLOCKS)
                log.warning("clock.apart", extra={"node": node, "seconds": round(apart)})
            if rounds >= FORGET_ROUNDS and not lives:
                with suppress(PenstockError):
                    await self._registry.delete(record.key, expect=record.version)
        return self._holding > 0
