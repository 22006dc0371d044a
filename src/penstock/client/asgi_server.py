"""A small HTTP server for one ASGI application: enough to run a receiver by itself, or in a test.

    server = await serve(app, port=9000)
    async with server:
        await server.serve_forever()

Behind a load balancer, or for an app with more than this one path, use a full ASGI server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools

Application = Callable[..., Awaitable[None]]


async def serve(app: Application, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Listen; the port is in `server.sockets[0].getsockname()`."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: _AsgiConnection(app), host, port)


class _AsgiConnection(asyncio.Protocol):
    """One client, one request at a time."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The application finishes what it began: its transaction does not depend on who waits for it."""

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()

    # ── from the parser ────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        url = httptools.parse_url(self._url)
        scope = {
            "type": "http",
            "method": self._parser.get_method().decode(),
            "path": (url.path or b"/").decode("latin-1"),
            "query_string": url.query or b"",
            "headers": self._headers,
        }
        self._task = asyncio.get_running_loop().create_task(self._answer(scope, b"".join(self._body)))

    # ── the application ────────────────────────────────────────────────────────────────────────

    async def _answer(self, scope: dict[str, Any], body: bytes) -> None:
        keep = self._parser.should_keep_alive()
        reply: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            reply.append(message)

        await self._app(scope, receive, send)
        head = b"HTTP/1.1 %d \r\n" % reply[0]["status"]
        head += b"".join(b"%b: %b\r\n" % pair for pair in reply[0]["headers"])
        self._transport.write(head + b"\r\n" + b"".join(message.get("body", b"") for message in reply[1:]))
        if keep:
            self._begin()
        else:
            self._transport.close()
