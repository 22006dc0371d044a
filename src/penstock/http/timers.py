"""One timer for all connections of a listener.

Time is cut into ticks. A connection that waits for something has a tick at which it is due, and stands in
the wheel under some tick not later than that. To put it off, which happens with every request, is one assignment:
when the wheel reaches the place where the connection stands, it is moved to where it belongs. So a deadline costs no
timer, and an idle live connection, which waits for nothing, costs nothing.

Whoever opens thousands of connections at once makes them all due at once. They are called in slices, between which the
loop does other things, and one that fails keeps none of the others from its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import ceil
from typing import Final, Protocol

log = logging.getLogger("penstock.http")

TICK_SECONDS = 0.25

SLICE: Final = 4_096
"""Work before the loop may do something else, in visits of things that are not due yet: about 5 ms."""

CALL: Final = 32
"""Such visits that a call of something that is due weighs: a refused head takes some 50 µs."""


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


class RoundWatcher(Protocol):
    """Who is told how the rounds of a background loop end, by its name."""

    def failed(self, name: str, error: BaseException) -> None: ...
    def succeeded(self, name: str) -> None: ...


class Wheel:
    """Calls things back when they are due, never early, and at most two ticks late unless the loop is held up."""

    name: Final = "deadlines"

    def __init__(self, timer: Timer, watcher: RoundWatcher | None = None, tick_seconds: float = TICK_SECONDS) -> None:
        self._timer, self._watcher, self._tick_seconds = timer, watcher, tick_seconds
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
        """Handle what has passed, a slice of it at most."""
        self._now = self._current()
        left = SLICE
        for tick in sorted(tick for tick in self._places if tick <= self._now):
            held = self._places.get(tick, set())  # one of the things called may have closed the wheel
            while held and left > 0:
                left -= self._visit(held.pop())
            if not held:
                self._places.pop(tick, None)
        wait = self._tick_seconds if left > 0 else 0
        self._handle = self._timer.call_later(wait, self._turn) if self._places else None

    def _visit(self, timed: Timed) -> int:
        """Call it if it is due, or put it where it belongs; what that weighed."""
        timed.place = 0
        if not timed.due:
            return 1
        if timed.due > self._now:
            self._put(timed, timed.due)
            return 1
        timed.due = 0
        self._call(timed)
        return CALL

    def _call(self, timed: Timed) -> None:
        try:
            timed.expired()
        except Exception as error:  # that is no reason to leave the others waiting for ever
            log.exception("deadline.failed")
            if self._watcher is not None:
                self._watcher.failed(self.name, error)
        else:
            if self._watcher is not None:
                self._watcher.succeeded(self.name)
