"""User agents of Web Push: they say hello, register a channel, and acknowledge what comes.

    python -m bench.rig.agents PORT COUNT UAIDS ENDPOINTS

UAIDS is a file with one id a line, for agents that come back, or does not exist: then they are new, register,
and their ids and endpoints are written to the two files. Answers `{"ready", "seconds"}` when all have had
their hello (and their endpoint). Then commands:

    total N     answer when N notifications have come in all: {"total", "seconds"}
    leave 0     all connections break: {"left"}
    back N      all connect anew at once and want N notifications each: {"seconds", "hello_seconds"}
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from bench.rig.child import reply

_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: push-notification\r\n\r\n"
)
_AT_ONCE = 500  # connections that are opened together
_NOTIFICATION = b'{"messageType":"notification","channelID":"'
_VERSION = b'","version":"'


def fail(why: str) -> None:
    """End at once, wherever this is called: an exception in a callback would only be printed."""
    sys.stderr.write(why + "\n")
    os._exit(1)


def frame(text: bytes) -> bytes:
    """A client's text frame; a mask of zeros leaves the text as it is."""
    size = bytes((0x80 | len(text),)) if len(text) < 126 else b"\xfe" + struct.pack("!H", len(text))
    return b"\x81" + size + b"\0\0\0\0" + text


class Crowd:
    """What all agents share: what was reached, and who wants to know."""

    def __init__(self, wanted: int) -> None:
        self.greeted = self.served = self.total = 0
        self.wanted = wanted  # notifications that an agent waits for before it counts as served
        self.changed = asyncio.Event()
        self.endpoints: dict[str, str] = {}

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


class Agent(asyncio.Protocol):
    """One user agent."""

    def __init__(self, crowd: Crowd, uaid: str) -> None:
        self._crowd, self.uaid, self._new = crowd, uaid, not uaid
        self._buffer = b""
        self._upgraded = False
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(_UPGRADE)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head:
                fail(f"agents: {head[:200]!r}")
            self._upgraded, self._buffer = True, rest
            self._say(messageType="hello", uaid=self.uaid, use_webpush=True)
        while (text := self._next()) is not None:
            self._hear(text)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upgraded and not self.transport.is_closing():
            fail("agents: a connection was lost")

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        size, start = buffer[1], 2
        if size == 126:
            if len(buffer) < 4:
                return None
            size, start = struct.unpack_from("!H", buffer, 2)[0], 4
        if len(buffer) < start + size:
            return None
        opcode, self._buffer = buffer[0] & 15, buffer[start + size :]
        if opcode == 8:
            fail(f"agents: closed with {buffer[start : start + size]!r}")
        return buffer[start : start + size]

    def _hear(self, text: bytes) -> None:
        if text.startswith(_NOTIFICATION):
            self._notified(text)
            return
        said = json.loads(text)
        if said["messageType"] == "hello":
            if self.uaid and self.uaid != said["uaid"]:
                fail("agents: a user agent was forgotten")
            self.uaid = said["uaid"]
            if self._new:
                self._say(messageType="register", channelID=str(uuid.uuid4()))
            else:
                self._greeted()
        elif said["messageType"] == "register":
            self._crowd.endpoints[self.uaid] = said["pushEndpoint"]
            self._greeted()

    def _greeted(self) -> None:
        self._crowd.greeted += 1
        self._crowd.changed.set()

    def _notified(self, text: bytes) -> None:
        self._crowd.total += 1
        self._got += 1
        channel, _, rest = text.removeprefix(_NOTIFICATION).partition(_VERSION)
        version = rest.partition(b'"')[0]
        self.transport.write(
            frame(b'{"messageType":"ack","updates":[{"channelID":"%b","version":"%b"}]}' % (channel, version))
        )
        if self._got == self._crowd.wanted:
            self._crowd.served += 1
        self._crowd.changed.set()

    def _say(self, **fields: object) -> None:
        self.transport.write(frame(json.dumps(fields).encode()))


async def connect(port: int, crowd: Crowd, uaids: list[str]) -> list[Agent]:
    loop = asyncio.get_running_loop()
    agents: list[Agent] = []
    for start in range(0, len(uaids), _AT_ONCE):
        part = uaids[start : start + _AT_ONCE]
        made = [loop.create_connection(lambda uaid=uaid: Agent(crowd, uaid), "127.0.0.1", port) for uaid in part]  # type: ignore[misc]
        agents += [agent for _, agent in await asyncio.gather(*made)]
    return agents


async def come_back(port: int, agents: list[Agent], wanted: int) -> list[Agent]:
    """All agents connect anew; answer when each has what it wants."""
    crowd, began = Crowd(wanted), time.perf_counter()
    back = await connect(port, crowd, [agent.uaid for agent in agents])
    await crowd.until(lambda: crowd.greeted == len(agents))
    greeted = time.perf_counter() - began
    await crowd.until(lambda: not wanted or crowd.served == len(agents))
    reply(seconds=time.perf_counter() - began, hello_seconds=greeted)
    return back


async def main(port: int, known: list[str], written: Callable[[dict[str, str]], None]) -> None:
    loop, crowd, began = asyncio.get_running_loop(), Crowd(0), time.perf_counter()
    agents = await connect(port, crowd, known)
    await crowd.until(lambda: crowd.greeted == len(known))
    written(crowd.endpoints)
    reply(ready=crowd.greeted, seconds=time.perf_counter() - began)
    lines: asyncio.Queue[str] = asyncio.Queue()
    threading.Thread(target=_read, args=(loop, lines), daemon=True).start()
    while line := await lines.get():
        command, number = line.split()
        if command == "leave":
            for agent in agents:
                agent.transport.abort()
            reply(left=len(agents))
        elif command == "back":
            agents = await come_back(port, agents, int(number))
        else:
            await crowd.until(lambda number=number: crowd.total >= int(number))  # type: ignore[misc]
            reply(total=crowd.total, seconds=time.perf_counter() - began)


def plan(port: str, count: str, uaids: str, endpoints: str) -> tuple[int, list[str], Callable[[dict[str, str]], None]]:
    """Who connects where, and what is written down of them."""

    def write(made: dict[str, str]) -> None:
        if made:
            Path(uaids).write_text("\n".join(made))
            Path(endpoints).write_text("\n".join(made.values()))

    known = Path(uaids).read_text().split() if Path(uaids).exists() else [""] * int(count)
    return int(port), known[: int(count)], write


def _read(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    loop.call_soon_threadsafe(lines.put_nowait, "")


if __name__ == "__main__":
    uvloop.run(main(*plan(*sys.argv[1:])))
