"""Wakes many who wait for the same thing, some in each turn of the loop.

Ten thousand who wait for one byte would otherwise be answered in one go, and nobody else for as long. One that fails
is logged, and keeps none of the others asleep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

log = logging.getLogger("penstock.waking")

AT_ONCE: Final = 256
"""Woken before the loop may do something else: to begin an answer takes some 30 µs."""


Look = Callable[[], object]
"""Has somebody look what there is: it may be more than it was woken for, or nothing any more."""


class Waking:
    """Wakes up to `AT_ONCE` at once, and the others in the turns that follow; nobody stands in line twice."""

    __slots__ = ("_line", "_woken")

    def __init__(self) -> None:
        self._line: OrderedDict[Look, None] = OrderedDict()
        self._woken = 0  # in this turn of the loop

    def wake(self, look: Look) -> None:
        """Have *look* called, now if few were in this turn of the loop."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._woken < AT_ONCE and not self._line:
            self._wake(look)
        else:
            self._line[look] = None

    def _wake(self, look: Look) -> None:
        self._woken += 1
        try:
            look()
        except Exception:
            log.exception("waking.failed")

    def _go_on(self) -> None:
        self._woken = 0
        if self._line:
            asyncio.get_running_loop().call_soon(self._go_on)
        while self._line and self._woken < AT_ONCE:
            self._wake(self._line.popitem(last=False)[0])
