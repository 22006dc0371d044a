"""Publishers that speak bytes: one append in flight on each connection, the next when it was answered.

    python -m bench.rig.askers PORT CONNECTIONS REQUESTS seconds|total N

REQUESTS has the greeting, what it is answered with, and the append; `{n}` in them is the number of the connection.
An answer is whole when it has two line ends, which is so for JetStream and for Redis. Says what
`publishers` says.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import uvloop

from bench.rig.publishers import Publisher, Run, plan, say_outcome
from bench.rig.requests import load


class Asker(Publisher):
    """One connection."""

    number = b"0"

    def send(self, request: bytes) -> None:
        super().send(request.replace(b"{n}", self.number, 1))

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        if data.startswith(b"-") or b'"error"' in data:
            self._failed(f"answered with {data[:200]!r}")
        elif data.count(b"\r\n") >= 2:
            self._received = b""
            self._answered(self)
        else:
            self._received = data


async def _connect(run: Run, port: int, number: int, greeting: bytes, greeted: bytes) -> Asker:
    wire = socket.create_connection(("127.0.0.1", port), timeout=60)
    wire.sendall(greeting.replace(b"{n}", b"%d" % number))
    received = b""
    while not received.endswith(greeted):
        if not (piece := wire.recv(4096)):
            raise SystemExit(f"asker {number} was closed after {received!r}")
        received += piece
    wire.setblocking(False)
    loop = asyncio.get_running_loop()
    _, asker = await loop.create_connection(lambda: Asker(run.answered, run.failed), sock=wire)
    asker.number = b"%d" % number
    return asker


async def measure(port: str, connections: str, file: str, *wanted: str) -> None:
    greeting, greeted, append = load(Path(file))
    run = plan([append], *wanted)
    askers: list[Publisher] = [
        await _connect(run, int(port), number, greeting, greeted) for number in range(int(connections))
    ]
    began, cpu = time.perf_counter(), time.process_time()
    run.start(askers)
    await run.done
    say_outcome(run, began, cpu)


if __name__ == "__main__":
    uvloop.run(measure(*sys.argv[1:]))
