"""As much of an HTTP client as Trickle needs: bodies that go out and come in while they are being made.

A request that is still being sent may already be answered, so whoever sends one listens at the same time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final, Self
from urllib.parse import quote

from penstock.client.http import ServerUnreachable, parse_server_url
from penstock.errors import PeerError
from penstock.wire.http_chunks import LAST_CHUNK, chunk
from penstock.wire.http_client import AnswerReader, request_head

_IDLE_KEPT: Final = 4
_PIECE_BYTES: Final = 65_536
_BROKEN: Final = (OSError, asyncio.IncompleteReadError, PeerError)


class TrickleConnection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._answer = AnswerReader(None)

    def close(self) -> None:
        """Let it go at once."""
        self._writer.transport.abort()

    @property
    def usable(self) -> bool:
        """It can take another request."""
        return self._answer.keep_alive and not self._writer.transport.is_closing() and not self._reader.at_eof()

    async def send(self, data: bytes) -> None:
        """Send, and wait while the peer does not take it."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> AnswerReader:
        """The next answer, as soon as its head is there."""
        self._answer = AnswerReader(None)
        while not self._answer.begun:
            await self._read_more()
        return self._answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes. Raises what `_BROKEN` lists when it breaks off."""
        while True:
            if piece := self._answer.take():
                yield piece
            if self._answer.complete:
                return
            await self._read_more()

    async def _read_more(self) -> None:
        data = await self._reader.read(_PIECE_BYTES)
        if data:
            self._answer.feed(data)
            return
        self._answer.end()
        if not self._answer.complete:
            raise asyncio.IncompleteReadError(b"", None)


class StreamedAnswer:
    """An answer whose body has not been read yet. Names of headers are lower case."""

    def __init__(self, peer: Peer, wire: TrickleConnection, head: AnswerReader) -> None:
        self._peer, self._wire = peer, wire
        self.status, self.headers = head.status, head.headers

    def number(self, name: str) -> int | None:
        """A header that is a whole number."""
        text = self.headers.get(name.lower(), "")
        return int(text) if text.removeprefix("-").isdigit() else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._wire.pieces():
                yield piece
        except _BROKEN as error:
            self.close()
            raise ServerUnreachable(self._peer.url, f"the answer broke off: {error}") from error
        self._peer.give_back(self._wire)

    async def read(self) -> bytes:
        """All of the body."""
        return b"".join([piece async for piece in self])

    def close(self) -> None:
        """Do not read the rest."""
        self._peer.drop(self._wire)


class Upload:
    """A request whose body is being made. Lives in `async with`."""

    def __init__(self, peer: Peer, wire: TrickleConnection) -> None:
        self._peer, self._wire = peer, wire
        self._listening = asyncio.create_task(wire.head())
        self._handed_over = False  # whoever reads the answer has the connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.gather(self._listening, return_exceptions=True)

    @property
    def answered(self) -> bool:
        """The server has said something, or is gone, before the body was complete."""
        return self._listening.done()

    async def write(self, data: bytes) -> None:
        """Send more, as fast as the server takes it."""
        if data and not self.answered:
            try:
                await self._wire.send(chunk(data))
            except OSError as error:
                await asyncio.wait([self._listening])
                if self._listening.exception() is not None:
                    raise ServerUnreachable(self._peer.url, error) from error

    async def finish(self) -> StreamedAnswer:
        """End the body and wait for the answer."""
        try:
            if not self.answered:
                await self._wire.send(LAST_CHUNK)
        except OSError:
            pass  # perhaps it answered first
        return await self.answer()

    async def answer(self) -> StreamedAnswer:
        """The answer, when it comes."""
        try:
            head = await asyncio.shield(self._listening)
        except _BROKEN as error:
            raise ServerUnreachable(self._peer.url, f"the connection broke off: {error}") from error
        self._handed_over = True
        return StreamedAnswer(self._peer, self._wire, head)

    def close(self) -> None:
        """Give it up; what was sent stays with the server."""
        self._listening.cancel()
        if not self._handed_over:
            self._peer.drop(self._wire)


class Peer:
    """A server, and the connections that are kept to it."""

    def __init__(self, url: str, token: str = "", *, context: ssl.SSLContext | None = None) -> None:
        self.url, self._place, self._token = url, parse_server_url(url), token
        self._context = (context or ssl.create_default_context()) if self._place.secure else None
        self._idle: list[TrickleConnection] = []
        self._wires: set[TrickleConnection] = set()

    def close(self) -> None:
        """Let go of all connections, also of those whose answers were not read to the end."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        self._idle.clear()

    def give_back(self, wire: TrickleConnection) -> None:
        """An exchange is complete: its connection can be used again."""
        if wire.usable and len(self._idle) < _IDLE_KEPT:
            self._idle.append(wire)
        else:
            self.drop(wire)

    def drop(self, wire: TrickleConnection) -> None:
        """Close a connection."""
        self._wires.discard(wire)
        wire.close()

    async def ask(
        self, method: str, levels: tuple[str, ...], headers: Mapping[str, str] | None = None, query: str = ""
    ) -> StreamedAnswer:
        """Send a request without a body; the answer's body is still to be read. Safe to repeat, so it is repeated."""
        while self._idle:
            wire = self._idle.pop()
            try:
                return await self._exchange(wire, method, levels, headers, query)
            except _BROKEN:
                self.drop(wire)
        wire = await self._connect()
        try:
            return await self._exchange(wire, method, levels, headers, query)
        except _BROKEN as error:
            self.drop(wire)
            raise ServerUnreachable(self.url, error) from error
        except BaseException:
            self.drop(wire)
            raise

    async def _exchange(
        self,
        wire: TrickleConnection,
        method: str,
        levels: tuple[str, ...],
        headers: Mapping[str, str] | None,
        query: str,
    ) -> StreamedAnswer:
        await wire.send(self._request(method, levels, {"Content-Length": "0", **(headers or {})}, query))
        return StreamedAnswer(self, wire, await wire.head())

    async def upload(self, levels: tuple[str, ...], headers: Mapping[str, str]) -> Upload:
        """Begin a POST on a connection of its own."""
        wire = await self._connect()
        try:
            await wire.send(self._request("POST", levels, {"Transfer-Encoding": "chunked", **headers}))
        except OSError as error:
            self.drop(wire)
            raise ServerUnreachable(self.url, error) from error
        return Upload(self, wire)

    def _request(self, method: str, levels: tuple[str, ...], headers: Mapping[str, str], query: str = "") -> bytes:
        path = "/".join((self._place.target, *(quote(level, safe="~") for level in levels)))
        fields = {**headers, "Authorization": f"Bearer {self._token}"} if self._token else headers
        return request_head(method, f"{path}?{query}" if query else path, self._place.authority, fields.items())

    async def _connect(self) -> TrickleConnection:
        try:
            async with asyncio.timeout(10):
                streams = await asyncio.open_connection(self._place.host, self._place.port, ssl=self._context)
        except (OSError, TimeoutError) as error:
            raise ServerUnreachable(self.url, error) from error
        wire = TrickleConnection(*streams)
        self._wires.add(wire)
        return wire
