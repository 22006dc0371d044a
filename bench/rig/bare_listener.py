"""The floor of idle memory, and of latency: one slotted protocol object a connection on uvloop, and nothing else.

    python -m bench.rig.bare_listener [CERTIFICATE]

Answers `{"port"}`. A GET gets the head of a chunked response and stays open; a POST gets a 201, and its
body goes to all that are open, stored nowhere.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import ClassVar, cast

import uvloop

from bench.rig.child import reply

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
_CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


class Bare(asyncio.Protocol):
    """One peer. Requests come whole: they fit into one segment."""

    __slots__ = ("transport",)
    open: ClassVar[list[Bare]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.open:
            self.open.remove(self)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self.transport.write(_HEAD)
            self.open.append(self)
            return
        body = data.partition(b"\r\n\r\n")[2]
        for peer in self.open:
            peer.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        self.transport.write(_CREATED)


async def serve(certificate: str = "") -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Bare, "127.0.0.1", 0, ssl=context, backlog=4096)
    reply(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
