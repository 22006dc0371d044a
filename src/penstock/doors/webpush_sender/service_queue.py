"""One push service and the bindings that wait for it: a service that is down holds up nobody else's.

A binding is in one place at a time: it has nothing to send, waits in its service's line, is being served, or
waits for its time after a failure of its own. Nothing of this costs a task while nothing is sent.
Whether a failure is the service's or the binding's own is decided in `wire/webpush_sender.py`,
how long it is waited in `binding.py`.

    Binding ──offers entries──▶ ServiceQueue ──a slot is free──▶ serve one entry ──▶ settle it ──▶ again
                                     ▲                                │
                                     └── the service failed: all wait ┘
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol

from penstock.doors.webpush_sender.push_client import PushTarget
from penstock.http.timers import Timed, Wheel

Spawn = Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class QueuedSender(Protocol):
    """Who waits in the line of a service."""

    @property
    def has_work(self) -> bool:
        """There is something to send, and no reason to wait."""
        ...

    async def serve(self) -> None:
        """Do one piece of it. Never raises."""
        ...


class ServiceQueue(Timed):
    """The line before one push service."""

    __slots__ = ("_line", "_slots", "_spawn", "_wheel", "failures", "held", "members", "queued", "running", "target")

    def __init__(self, target: PushTarget, wheel: Wheel, spawn: Spawn, slots: int) -> None:
        super().__init__()
        self.target, self._wheel, self._spawn, self._slots = target, wheel, spawn, slots
        self._line: deque[QueuedSender] = deque()
        self.queued: set[QueuedSender] = set()  # in the line, or being served
        self.members = 0  # bindings that belong here
        self.running = self.failures = 0
        self.held = False  # it failed: nobody is served until the time is up

    def enqueue(self, one: QueuedSender) -> None:
        """Serve *one* when it is its turn; nothing happens if it waits already."""
        if one not in self.queued:
            self.queued.add(one)
            self._line.append(one)
            self.advance()

    def advance(self) -> None:
        """Serve as many bindings as there are free slots. After a failure of the service, only one at a time."""
        slots = 1 if self.failures else self._slots
        while self._line and not self.held and self.running < slots:
            self.running += 1
            self._spawn(self._serve(self._line.popleft()))

    async def _serve(self, one: QueuedSender) -> None:
        try:
            await one.serve()
        finally:
            self.running -= 1
            self.queued.discard(one)
            if one.has_work:
                self.enqueue(one)
            self.advance()

    def answered(self) -> None:
        """It works."""
        self.failures = 0

    def hold(self, seconds: float) -> None:
        """The service failed: serve nobody for *seconds*. Sends that fail meanwhile count as the same failure."""
        if not self.held:
            self.failures += 1
            self.held = True
            self._wheel.arm(self, seconds)

    def expired(self) -> None:
        """The time is up."""
        self.held = False
        self.advance()

    def retry_now(self) -> None:
        """Somebody says that it works again."""
        if self.held:
            self._wheel.forget(self)
            self.expired()

    def close(self) -> None:
        """Nobody belongs here any more."""
        self._wheel.forget(self)
        self._line.clear()
        self.target.close()
