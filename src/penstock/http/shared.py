"""What the connections of one listener share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from penstock.core.clock import Clock
from penstock.http.bodies import ByteBudget
from penstock.http.cors import Cors
from penstock.http.flushing import Flusher
from penstock.http.rate_limits import Caps
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.http.websocket import FrameReaders
from penstock.settings import ServerSettings
from penstock.wire.http_requests import HeadParser
from penstock.wire.http_responses import date_line
from penstock.wire.proxy import Trusted

DECRYPTED_BYTES = 65_536
"""Bytes that a TLS connection hands over at once: four of the largest records."""


class Counters:
    """Plain numbers that the metrics page reads. They only rise, except those in `live`."""

    __slots__ = ("bytes_in", "closed", "cut", "failed", "live", "opened", "refused", "requests", "timed_out")

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.refused = 0  # over a cap, closed at accept
        self.cut = 0  # took no byte for too long
        self.failed = 0  # requests at which a handler failed: 500 or more
        self.timed_out = 0  # head, body or answer did not come in time
        self.requests = 0
        self.bytes_in = 0
        self.live: dict[str, int] = {}  # open live answers and WebSockets, by door


class HandlerTasks:
    """The tasks in which coroutine handlers run. They never raise; a group waits for them all."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel whatever still runs."""
        for task in list(self._tasks):
            task.cancel()


class OpenConnection(Protocol):
    """A connection, as the listener that stops sees it."""

    def drain(self) -> None:
        """Finish what was begun, begin nothing."""
        ...

    def cut(self) -> None:
        """Close now."""
        ...


class Shared:
    """Settings, table, timers and counters of one listener."""

    __slots__ = (
        "_date",
        "answers",
        "bodies",
        "caps",
        "clock",
        "connections",
        "cors",
        "counters",
        "decrypted",
        "draining",
        "emptied",
        "handler_tasks",
        "idle_ticks",
        "live_flusher",
        "loop",
        "parser",
        "prompt_flusher",
        "readers",
        "request_ticks",
        "router",
        "scheme",
        "settings",
        "trusted",
        "wheel",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        settings: ServerSettings,
        caps: Caps,
        trusted: Trusted,
        clock: Clock,
        group: asyncio.TaskGroup,
        wheel: Wheel,
        expose: tuple[str, ...],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.router, self.settings, self.caps, self.trusted = router, settings, caps, trusted
        self.clock, self.wheel = clock, wheel
        self.decrypted = memoryview(bytearray(DECRYPTED_BYTES))
        self.idle_ticks = wheel.ticks(settings.idle_timeout)
        self.request_ticks = wheel.ticks(settings.request_timeout)
        self.handler_tasks = HandlerTasks(group)
        self.cors = Cors(settings.cors_origins, expose)
        self.counters = Counters()
        self.parser = HeadParser()
        self.bodies = ByteBudget("server.bodies_bytes", settings.bodies_bytes)
        self.answers = ByteBudget("server.answers_bytes", settings.answers_bytes)
        self.readers = FrameReaders(settings.websocket_bytes)
        self.scheme = "https" if settings.tls_certificate else "http"
        self.prompt_flusher = Flusher(self.loop)
        linger = settings.linger_ms / 1000
        self.live_flusher = Flusher(self.loop, linger) if linger else self.prompt_flusher
        self.connections: set[OpenConnection] = set()
        self.emptied = asyncio.Event()  # no connection is left; only of interest while draining
        self.draining = False
        self._date = b""

    @property
    def bytes_out(self) -> int:
        """Bytes written so far."""
        more = 0 if self.live_flusher is self.prompt_flusher else self.live_flusher.bytes_out
        return self.prompt_flusher.bytes_out + more

    def date(self) -> bytes:
        """The Date line of this second: made for its first answer, forgotten at its end."""
        if not self._date:
            second, ms = divmod(self.clock.now_ms(), 1000)
            self._date = date_line(second)
            self.loop.call_later(1 - ms / 1000, self._forget_date)
        return self._date

    def _forget_date(self) -> None:
        self._date = b""
