"""Waiting for a condition instead of for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

WITHIN_SECONDS = 60.0
"""Longer than what takes a second may take on a machine that does ten other things. A wait ends as soon as its
condition is true."""


class TooLate(AssertionError):
    """A condition did not come true within its deadline."""


def wait_until(condition: Callable[[], T], within: float = WITHIN_SECONDS) -> T:
    """Return the first true value of *condition*; raise `TooLate` after *within* seconds."""
    for pause in _pauses(within):
        if value := condition():
            return value
        time.sleep(pause)
    raise TooLate(_sentence(condition, within))


async def wait_until_async(condition: Callable[[], T | Awaitable[T]], within: float = WITHIN_SECONDS) -> T:
    """As `wait_until`, while the event loop runs on. *condition* may be a coroutine function."""
    for pause in _pauses(within):
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        await asyncio.sleep(pause)
    raise TooLate(_sentence(condition, within))


def _pauses(within: float) -> Iterator[float]:
    """Short at first, as most conditions are nearly true already; the last look is at the deadline."""
    deadline = time.monotonic() + within
    pause = 0.001
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, 0.05)
    yield 0


def _sentence(condition: object, within: float) -> str:
    name = getattr(condition, "__qualname__", repr(condition))
    return f"{name} was not true within {within:g} s"
