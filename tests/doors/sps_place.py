"""The door on the memory engine, behind a real socket, in the test's own loop; time is moved by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.clock import ManualClock
from penstock.core.hub import AT_ONCE, Hub
from penstock.core.ledger import Ledger
from penstock.doors.sps import Sps
from penstock.engines.memory import MemoryEngine
from penstock.http.listener import Listener
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.settings import HubSettings, ServerSettings, Settings
from penstock.values import Batch, Draft


class ManualTime:
    """A loop's time that stands still until it is moved; what is due then is called."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._order = count()  # of what is due at the same time, the first booked is called first
        self._booked: list[tuple[float, int, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + delay, callback, (), asyncio.get_running_loop())
        heappush(self._booked, (self._now + delay, next(self._order), callback, handle))
        return handle

    def advance(self, seconds: float) -> None:
        self._now += seconds
        while self._booked and self._booked[0][0] <= self._now:
            _, _, callback, handle = heappop(self._booked)
            if not handle.cancelled():
                callback()


class Place:
    """The door on the memory engine, behind a real socket."""

    def __init__(self, engine: MemoryEngine, hub: Hub, time: ManualTime, authenticator: Authenticator) -> None:
        self.engine, self.hub, self.time, self.authenticator = engine, hub, time, authenticator
        self.listener: Listener
        self.door: Sps
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, sock: socket.socket | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that ends with the block; over *sock*, which is connected, if one is given."""
        if sock is None:
            reader, writer = await asyncio.open_connection(*self.listener.address)
        else:
            reader, writer = await asyncio.open_connection(sock=sock, limit=2**20)
        self._writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def online(self, uid: str) -> bool:
        return bool(self.hub.readers(f"/users/{uid}"))

    async def publish(self, uid: str, body: bytes) -> None:
        await self.engine.log.append(Batch((Draft(f"/users/{uid}", body),)))

    async def subscribe(self, query: str, token: str = "admin") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connect()
        writer.write(f"GET /subscribe?{query} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return reader, writer

    async def ask(self, method: str, target: str) -> int:
        reader, writer = await self.connect()
        writer.write(f"{method} {target} HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n".encode())
        return int((await reader.readline()).split()[1])

    async def notify(self, target: str, body: bytes = b"x") -> Any:
        """Publish, and return what the answer says."""
        reader, writer = await self.connect()
        head = (
            f"POST /notify_to_{target} HTTP/1.0\r\nAuthorization: Bearer admin\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return json.loads((await reader.read()).partition(b"\r\n\r\n")[2])

    async def presence(self) -> list[tuple[str, str]]:
        page = await self.engine.log.read_after(("/_presence",), 0)
        lines = [json.loads(line) for entry in page.entries for line in entry.body.splitlines()]
        return [(line["state"], line.get("hid", "")) for line in lines]


@asynccontextmanager
async def place(
    keys: Path, *, make: type[Sps] = Sps, at_once: int = AT_ONCE, many: int = 1, **of_hub: int
) -> AsyncIterator[Place]:
    """A door that is open in the block. *make* may be a door that does something wrong.

    A stream with *many* readers is written to them together: by default with one, so that few wires show it.
    """
    time = ManualTime()
    async with MemoryEngine() as engine, Hub(engine.log, HubSettings(**of_hub), at_once=at_once, many=many) as hub:
        clock, authenticator = ManualClock(), Authenticator(open_keys(keys), "admin")
        ledger = Ledger(engine.log, clock, node="test")
        await ledger.open(engine.registry)
        context = Context(
            engine.log, engine.mailbox, engine.registry, engine.bus, hub, ledger, authenticator, clock,
            Wheel(time), 1024 * 1024,
        )  # fmt: skip
        made = Place(engine, hub, time, authenticator)
        async with (
            make(context, Settings(), time.time) as made.door,
            Listener(
                Router(made.door.routes()), ServerSettings(listen="127.0.0.1:0"), clock=clock, wheel=context.wheel
            ) as made.listener,
        ):
            try:
                yield made
            finally:
                await made.hang_up()
        await ledger.close()
