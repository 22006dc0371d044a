"""When output is written: once per loop turn for all connections that have some, or after a linger."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger("penstock.http")

SLICE = 512
"""Connections that are written to before the loop may do something else: about 6 ms."""


class Flushed(Protocol):
    """A connection that has collected output."""

    def flush(self) -> None:
        """Write it."""
        ...

    def cut(self) -> None:
        """Close the connection now."""
        ...


class Flusher:
    """Writes what connections have collected, once per loop turn or after the linger."""

    __slots__ = ("_loop", "_seconds", "bytes_out", "prompt", "ready")

    def __init__(self, loop: asyncio.AbstractEventLoop, linger_seconds: float = 0.0) -> None:
        self._loop, self._seconds = loop, linger_seconds
        self.prompt = not linger_seconds  # what is last in a turn of the loop may be written without it
        self.ready: list[Flushed] = []  # not empty means that a run is booked
        self.bytes_out = 0

    def add(self, pipe: Flushed) -> None:
        """Have *pipe* flushed with the others."""
        if not self.ready:
            self.book()
        self.ready.append(pipe)

    def book(self) -> None:
        """Have `run` called. Only for the first pipe of a round."""
        if self._seconds:
            self._loop.call_later(self._seconds, self.run)
        else:
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Flush the next slice; what is left has its turn after the loop's other business."""
        ready = self.ready
        if len(ready) <= SLICE:
            self.ready = []
        else:
            self.ready = ready[SLICE:]
            del ready[SLICE:]
            self._loop.call_soon(self.run)
        for pipe in ready:
            try:
                pipe.flush()
            except Exception:  # an owner failed at what it heard: that is no reason to leave the others waiting
                log.exception("flush.failed")
                pipe.cut()
