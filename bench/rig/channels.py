"""Many channels at once: each is written a segment per second, and read by two readers, segment after segment.

    python -m bench.rig.channels PORT CHANNELS SECONDS TOKEN

Answers `{"segments", "read", "errors", "late_ms"}`: what was published and read, what went wrong, and how late the
last reader had a segment at worst.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from bench.rig.child import reply

READERS = 2
_BODY = b"s" * 1024


class Load:
    """Everything that happens, and what went wrong."""

    def __init__(self, port: int, token: str, seconds: int) -> None:
        self._port, self._seconds = port, seconds
        self._fields = f"Host: bench\r\nAuthorization: Bearer {token}\r\n"
        self.segments = self.read = 0
        self.errors: list[str] = []
        self.late = 0.0
        self._sent: dict[tuple[str, int], float] = {}

    async def channel(self, name: str, begin: float) -> None:
        """One channel with its publisher and its readers."""
        wires = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(READERS + 1)]
        await self._ask(*wires[0], f"POST /trickle/{name}", b"")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(name, *wires[0], begin))
            for reader, writer in wires[1:]:
                group.create_task(self._read(name, reader, writer))
        for _, writer in wires:
            writer.close()

    async def _publish(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: float
    ) -> None:
        for seq in range(self._seconds):
            await asyncio.sleep(max(0.0, begin + seq - time.monotonic()))
            self._sent[name, seq] = time.monotonic()
            status, _ = await self._ask(reader, writer, f"POST /trickle/{name}/{seq}", _BODY)
            self.segments += status == 200
            if status != 200:
                self.errors.append(f"POST {name}/{seq}: {status}")

    async def _read(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for seq in range(self._seconds):
            status, body = await self._ask(reader, writer, f"GET /trickle/{name}/{seq}", None)
            if status == 200 and body == _BODY:
                self.read += 1
                self.late = max(self.late, time.monotonic() - self._sent[name, seq])
            else:
                self.errors.append(f"GET {name}/{seq}: {status}, {len(body)} bytes")

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str, body: bytes | None
    ) -> tuple[int, bytes]:
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        writer.write(f"{line} HTTP/1.1\r\n{self._fields}{length}\r\n".encode() + (body or b""))
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        if b"\r\nTransfer-Encoding: chunked" not in head:
            size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            return status, await reader.readexactly(size)
        whole = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            whole += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        return status, whole


async def run(port: int, channels: int, seconds: int, token: str) -> Load:
    """Begin the channels one after the other, spread over a second."""
    load = Load(port, token, seconds)
    begin = time.monotonic() + 1 + channels / 300  # they must all be made by then
    try:
        async with asyncio.timeout(seconds + channels / 100 + 60), asyncio.TaskGroup() as group:
            for number in range(channels):
                group.create_task(load.channel(f"bench-{channels}-{number}", begin + number / channels))
    except (BaseExceptionGroup, TimeoutError) as error:
        load.errors.append(repr(error)[:500])
    return load


def main(port: str, channels: str, seconds: str, token: str) -> None:
    load = uvloop.run(run(int(port), int(channels), int(seconds), token))
    reply(
        segments=load.segments, read=load.read, errors=len(load.errors), first=load.errors[:3], late_ms=1000 * load.late
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
