"""What the tests of the connection layer share: a listener on a free port, raw bytes, and time by hand."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.http.event_loop import run_loop
from penstock.http.listener import Listener
from penstock.http.live_answer import Outlet
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.http.routing import NONE, Body, Route, Router
from penstock.http.timers import Wheel
from penstock.limits import BODY_BUFFER_BYTES
from penstock.settings import ServerSettings
from penstock.testing import wait_until_async
from tests.http.certificates import trusting

WITHIN = 20.0

secured: dict[str, str] = {}  # the certificate of every site, while tests run over TLS


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that the server uses, and never for ever."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(*args, **kwargs)

        run_loop(bounded())

    return run


class IncomingBody:
    """A body as it comes, for a handler that reads it piece by piece."""

    def __init__(self, request: Request) -> None:
        self._request, self._news = request, asyncio.Event()
        self._pieces: list[bytes] = []
        self._ended = False
        self._error: PenstockError | None = None
        request.divert(self)

    @property
    def full(self) -> bool:
        return sum(map(len, self._pieces)) >= BODY_BUFFER_BYTES

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._news.set()

    def end(self, error: PenstockError | None) -> None:
        self._ended, self._error = True, error
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._ended or self._pieces:
            await self._news.wait()
            self._news.clear()
            pieces, self._pieces = self._pieces, []
            self._request.want_body()
            if pieces:
                yield b"".join(pieces)
        if self._error is not None:
            raise self._error


class ManualTimer:
    """A loop's clock that stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._calls: list[tuple[float, Callable[[], None], _Handle]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        handle = _Handle()
        self._calls.append((self._now + delay, callback, handle))
        return handle

    @property
    def booked(self) -> int:
        """Timers that wait."""
        return sum(not handle.cancelled for _, _, handle in self._calls)

    def advance(self, seconds: float, step: float = 0.25) -> None:
        """Let so much time pass, in steps no longer than the wheel's ticks."""
        end = self._now + seconds
        while self._now < end:
            self._now = min(end, self._now + step)
            due = [call for call in self._calls if call[0] <= self._now]
            self._calls = [call for call in self._calls if call[0] > self._now]
            for _, callback, handle in due:
                if not handle.cancelled:
                    callback()


class _Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """A client that sends exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read a response head, interim ones included."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WITHIN)
        lines = raw.decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def answer(self, *, method: str = "GET") -> Answer:
        """Read one complete answer."""
        status, headers = await self.head()
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join([piece async for piece in self.chunks()]))
        return Answer(status, headers, await self.read(int(headers["content-length"])))

    async def chunks(self) -> AsyncIterator[bytes]:
        while piece := await self.chunk():
            yield piece

    async def chunk(self) -> bytes:
        """Read one chunk; empty at the end."""
        size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), WITHIN), 16)
        return (await self.read(size + 2))[:-2]

    async def read(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), WITHIN)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(-1), WITHIN)
        except ConnectionResetError:
            return b""

    async def get(self, path: str, *headers: str) -> Answer:
        self.send(request("GET", path, *headers))
        return await self.answer()

    def finish(self) -> None:
        """Say that no more comes. TLS has no half-close: there it is to leave, after what was sent."""
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    def leave(self) -> None:
        """Close the connection, as a client that ends does."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """Reset the connection, as a client that crashed or has unread bytes does."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.leave()


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """A request as a well-behaved client sends it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Wire:
    """The owner of a live answer that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.outlet: Outlet

    def drained(self) -> None:
        self.heard.append("drained")

    def lost(self) -> None:
        self.heard.append("lost")

    def flushed(self) -> None:
        self.heard.append("flushed")


class Site:
    """A listener with some handlers, what they saw, and its clock if that is moved by hand."""

    def __init__(self, listener: Listener, timer: ManualTimer | None) -> None:
        self.listener, self.timer = listener, timer
        self._peers: list[Peer] = []

    async def connect(self, *, source: str | None = None, limit: int = 2**16, **options: Any) -> Peer:
        local = (source, 0) if source else None
        if self.listener.settings.tls_certificate:
            options.setdefault("ssl", trusting())
        host, port = self.listener.address
        reader, writer = await asyncio.open_connection(host, port, limit=limit, local_addr=local, **options)
        peer = Peer(reader, writer)
        self._peers.append(peer)
        return peer

    def leave(self) -> None:
        for peer in self._peers:
            peer.leave()

    @property
    def connections(self) -> int:
        return len(self.listener._shared.connections)

    async def connections_are(self, count: int) -> None:
        await wait_until_async(lambda: self.connections == count, within=WITHIN)


@asynccontextmanager
async def site(routes: Iterable[Route] = (), *, manual: bool = False, **settings: Any) -> AsyncIterator[Site]:
    """A listener with *routes* beside the usual ones."""
    timer = ManualTimer() if manual else None
    wheel = Wheel(timer) if timer else None
    expose = settings.pop("expose", ())
    settings = {"listen": "127.0.0.1:0", "drain_seconds": 5.0, **secured, **settings}
    table = [Route("GET", "/hello", hello), *routes]
    async with Listener(Router(table), ServerSettings(**settings), expose=expose, wheel=wheel) as listener:
        place = Site(listener, timer)
        try:
            yield place
        finally:
            place.leave()


def hello(request: Request) -> Response:
    return Response(200, b'{"hello":"world"}')


def live_route(wires: list[Wire], *, watch: bool = False, path: str = "/live") -> Route:
    """A route whose answers stay open, owned by the wires it adds to the list."""

    def live(request: Request) -> Response:
        wire = Wire()
        wire.outlet = request.open(200, (("Content-Type", "text/plain"),), owner=wire, watch=watch)
        wires.append(wire)
        return LIVE

    return Route("GET", path, live)


def slow_route(futures: list[asyncio.Future[Response]], method: str = "GET", body: Body = NONE) -> Route:
    """A route whose answers are futures that it adds to the list."""

    def slow(request: Request) -> asyncio.Future[Response]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    return Route(method, "/slow", slow, body)
