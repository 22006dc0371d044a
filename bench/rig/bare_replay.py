"""The floor of a storm: a listener on uvloop that answers every request with the same bytes from memory.

    python -m bench.rig.bare_replay SIZE EVENTS

Answers `{"port"}`. Every client gets EVENTS pieces of SIZE bytes in one write. A POST is answered, and stored nowhere.
"""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar, cast

import uvloop

from bench.rig.child import reply
from bench.rig.requests import MARK

_CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


class Bare(asyncio.Protocol):
    """One client."""

    __slots__ = ("_transport",)
    answer: ClassVar[bytes] = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(_CREATED if data.startswith(b"POST") else self.answer)


async def serve(size: str, events: str) -> None:
    Bare.answer = MARK.ljust(int(size), b"x") * int(events)
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0, backlog=4096)
    reply(port=server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
