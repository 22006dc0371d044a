"""The floor of the message stream: the same exchanges without sessions, packs, checks or a disk.

    python -m bench.rig.bare_sessions

Answers `{"port"}`. A GET of a session's stream stays open and is given what is POSTed to its number; a GET that is a
short poll gets a 204. Requests come whole: they fit into one segment.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar, cast

import uvloop

from bench.rig.child import reply

_NUMBER = re.compile(rb"session(\d+)")
_EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
_OPEN = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
_DONE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Bare(asyncio.Protocol):
    """One peer."""

    __slots__ = ("transport",)
    open: ClassVar[dict[bytes, Bare]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET") and b"shortpolling" in data:
            self.transport.write(_EMPTY)
        elif found := _NUMBER.search(data):
            if data.startswith(b"GET"):
                self.open[found[1]] = self
                self.transport.write(_OPEN)
            else:
                self.open[found[1]].transport.write(data.partition(b"\r\n\r\n")[2])
                self.transport.write(_DONE)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, backlog=4096)
    reply(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
