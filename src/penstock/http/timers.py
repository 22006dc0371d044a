"""One timer for all connections of a listener.

Time is cut into ticks. A connection that waits for something has a tick at which it is due, and stands in
the wheel under some tick not later than that. GroupedPuts the due tick off, which happens with every request, is
one assignment: when the wheel reaches the place where the connection stands, it is moved to where it
belongs. So a deadline costs no timer, and an idle live connection, which waits for nothing, costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import ceil
from typing import Protocol

TICK_SECONDS = 0.25


class Timed:
    """Something that the wheel can call back."""

    __slots__ = ("due", "place")

    def __init__(self) -> None:
        self.due = 0  # the tick at which to be called; 0 is never
        self.place = 0  # the tick under which the wheel holds it; 0 is nowhere

    def expired(self) -> None:
        """The time is up."""
        raise NotImplementedError


class Timer(Protocol):
    """The part of an event loop that the wheel needs."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle: ...


class Wheel:
    """Calls things back when they are due, never early, and at most two ticks late unless the loop is held up."""

    def __init__(self, timer: Timer, tick_seconds: float = TICK_SECONDS) -> None:
        self._timer, self._tick_seconds = timer, tick_seconds
        self._places: dict[int, set[Timed]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._now = 0  # the last tick that was handled; only right while the timer runs

    @property
    def armed(self) -> int:
        """How many things it holds: for tests and metrics."""
        return sum(map(len, self._places.values()))

    def time(self) -> float:
        """Seconds of the clock that it goes by."""
        return self._timer.time()

    def arm(self, timed: Timed, seconds: float) -> None:
        """Call *timed* back in so many seconds, instead of at any earlier agreement."""
        self.arm_ticks(timed, self.ticks(seconds))

    def ticks(self, seconds: float) -> int:
        """What `arm_ticks` takes, for those who arm again and again."""
        return 1 + max(1, ceil(seconds / self._tick_seconds))

    def arm_ticks(self, timed: Timed, ticks: int) -> None:
        """As `arm`, with the division done before."""
        if self._handle is None:
            self._start()
        due = timed.due = self._now + ticks
        if not timed.place or due < timed.place:
            self._put(timed, due)

    def disarm(self, timed: Timed) -> None:
        """Do not call *timed* back."""
        timed.due = 0

    def forget(self, timed: Timed) -> None:
        """Hold no reference to *timed* any more."""
        timed.due = 0
        self._take_out(timed)

    def close(self) -> None:
        """Stop, and let go of everything."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._places.clear()

    def _put(self, timed: Timed, tick: int) -> None:
        self._take_out(timed)
        timed.place = tick
        self._places.setdefault(tick, set()).add(timed)

    def _take_out(self, timed: Timed) -> None:
        held = self._places.get(timed.place)
        if held is not None:
            held.discard(timed)
        timed.place = 0

    def _current(self) -> int:
        return int(self._timer.time() / self._tick_seconds)

    def _start(self) -> None:
        self._now = self._current()
        self._handle = self._timer.call_later(self._tick_seconds, self._turn)

    def _turn(self) -> None:
        """Handle every tick that has passed."""
        target = self._current()
        for tick in sorted(tick for tick in self._places if tick <= target):
            for timed in self._places.pop(tick):
                timed.place = 0
                self._visit(timed, target)
        self._now = target
        self._handle = self._timer.call_later(self._tick_seconds, self._turn) if self._places else None

    def _visit(self, timed: Timed, now: int) -> None:
        if not timed.due:
            return
        if timed.due <= now:
            timed.due = 0
            timed.expired()
        else:
            self._put(timed, timed.due)
