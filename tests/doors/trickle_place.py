"""The door on the memory engine, behind a real socket, in the test's own loop; time is moved by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.core.bus import Bus, LocalBus
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import Membership, SingleMember
from penstock.core.log import Log
from penstock.doors.trickle import Trickle
from penstock.engines.memory import MemoryEngine
from penstock.http.listener import Listener
from penstock.http.routing import Router
from penstock.http.timers import Wheel
from penstock.settings import ServerSettings, Settings, TrickleSettings
from penstock.testing import wait_until_async
from penstock.wire.http_chunks import LAST_CHUNK, chunk
from tests.doors.sps_place import ManualTime


class Peer:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.headers: dict[str, str] = {}

    def send(self, *pieces: bytes, end: bool = False) -> None:
        """Send chunks of a body."""
        self.writer.write(b"".join(map(chunk, pieces)) + (LAST_CHUNK if end else b""))

    async def head(self) -> int:
        """The status of the next answer that is not interim."""
        async with asyncio.timeout(20):
            while True:
                lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                self.headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:] if line)}
                if (status := int(lines[0].split(" ")[1])) >= 200:
                    return status

    async def rest(self) -> bytes:
        """The body, which must end properly."""
        async with asyncio.timeout(20):
            if "content-length" in self.headers:
                return await self.reader.readexactly(int(self.headers["content-length"]))
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return body

    def cut(self) -> None:
        self.writer.transport.abort()


class Place:
    """One node."""

    def __init__(self, engine: MemoryEngine, time: ManualTime, clock: ManualClock, hub: Hub) -> None:
        self.engine, self.time, self.clock, self.hub = engine, time, clock, hub
        self.door: Trickle
        self.listener: Listener
        self._peers: list[Peer] = []

    async def connect(self, request: bytes, sock: socket.socket | None = None) -> Peer:
        if sock is None:
            streams = await asyncio.open_connection(*self.listener.address)
        else:
            streams = await asyncio.open_connection(sock=sock, limit=4096)
        peer = Peer(*streams)
        self._peers.append(peer)
        peer.writer.write(request)
        return peer

    async def post(self, channel: str, seq: int, *pieces: bytes, end: bool = False, **headers: str) -> Peer:
        """Begin to publish."""
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST /trickle/{channel}/{seq} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n{fields}"
        peer = await self.connect((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        peer.send(*pieces, end=end)
        return peer

    async def get(self, channel: str, seq: int | str, *, sock: socket.socket | None = None) -> Peer:
        return await self.connect(
            f"GET /trickle/{channel}/{seq} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n\r\n".encode(), sock
        )

    async def ask(self, method: str, target: str) -> int:
        fields = "Host: x\r\nContent-Length: 0\r\nAuthorization: Bearer admin"
        peer = await self.connect(f"{method} /trickle/{target} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        return await peer.head()

    async def publish(self, channel: str, seq: int, body: bytes) -> int:
        """Publish a whole segment; the status of the answer."""
        peer = await self.post(channel, seq, *([body] if body else []), end=True)
        return await peer.head()

    async def read(self, channel: str, seq: int) -> bytes:
        peer = await self.get(channel, seq)
        assert await peer.head() == 200
        return await peer.rest()

    async def head_is(self, channel: str, head: int) -> None:
        await wait_until_async(lambda: getattr(self.door.channels.get(channel), "head", None) == head)

    def advance(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        for _ in range(max(1, int(seconds * 4))):
            self.time.advance(min(seconds, 0.25))
        self.clock.advance(seconds)

    async def recorded(self, stream: str) -> list[bytes]:
        page = await self.engine.log.read_index(stream, 0)
        return [entry.body for entry in page.entries]

    async def hang_up(self) -> None:
        for peer in self._peers:
            peer.cut()
        await asyncio.gather(*(peer.writer.wait_closed() for peer in self._peers), return_exceptions=True)


@asynccontextmanager
async def place(
    keys: Path,
    *,
    make: type[Trickle] = Trickle,
    log: Callable[[Log], Any] = lambda log: log,
    engine: MemoryEngine | None = None,
    clock: ManualClock | None = None,
    members: Membership | None = None,
    bus: Bus | None = None,
    node: str = "test",
    **settings: Any,
) -> AsyncIterator[Place]:
    """A door that is open in the block. *make* may be a door that does something wrong, *log* a log that fails."""
    time, clock = ManualTime(), clock or ManualClock()
    async with AsyncExitStack() as stack:
        if engine is None:
            engine = await stack.enter_async_context(MemoryEngine(clock=clock))
        hub = await stack.enter_async_context(Hub(engine.log))
        ledger = Ledger(engine.log, clock, node=node)
        await ledger.open(engine.registry)
        context = Context(
            log(engine.log), engine.mailbox, engine.registry, bus or LocalBus(node), hub, ledger,
            Authenticator(open_keys(keys), "admin"), clock, Wheel(time), 1024 * 1024,
            members=members or SingleMember(),
        )  # fmt: skip
        made = Place(engine, time, clock, hub)
        chosen = replace(Settings(), trickle=replace(TrickleSettings(), **{"autocreate": True, **settings}))
        async with (
            make(context, chosen, time.time) as made.door,
            Listener(Router(made.door.routes()), ServerSettings(listen="127.0.0.1:0")) as made.listener,
        ):
            if members is not None:
                made.door.reachable(made.listener.url)
            try:
                yield made
            finally:
                await made.hang_up()
        await ledger.close()
