"""Publishers on keep-alive connections, one request in flight on each.

    python -m bench.rig.publishers PORT CONNECTIONS REQUESTS seconds S     as fast as answers come
    python -m bench.rig.publishers PORT CONNECTIONS REQUESTS total N       the same, N requests
    python -m bench.rig.publishers PORT CONNECTIONS REQUESTS rate R S      open loop: R a second, whatever comes back
    python -m bench.rig.publishers PORT CONNECTIONS REQUESTS meanwhile R   the same, from one line of input to the next

With `meanwhile` it says `{"ready"}` when every connection was used: only publishers that are there are measured.

Answers `{"requests", "seconds", "p50_ms", "p99_ms", "cpu"}`. Any status but 201 or 202 ends it. In the
open loop each event carries the time at which it was due, behind its mark; when all connections are
busy it waits for one, and its time stays the one at which it was due.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from bench.rig.child import reply
from bench.rig.requests import MARK, STAMP_DIGITS, load

_TICK = 0.001  # seconds: the open loop sends what is due once per tick


class Publisher(asyncio.Protocol):
    """One connection."""

    def __init__(self, answered: Callable[[Publisher], None], failed: Callable[[str], None]) -> None:
        self._answered, self._failed = answered, failed
        self._received = b""
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes) -> None:
        self.began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
        if data[9:12] not in (b"201", b"202"):
            self._failed(f"answered with {data[:200]!r}")
        elif _is_whole(data):
            self._received = b""
            self._answered(self)
        else:
            self._received = data

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(f"connection lost: {exc}")


def _is_whole(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = data[:end].lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return len(data) >= end + 4 + int(length)


class Run:
    """One measurement: sends until it has enough, then is `done`."""

    def __init__(self, requests: list[bytes]) -> None:
        self.requests = requests
        self.seconds: list[float] = []  # each answer's
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = 0

    async def connect(self, port: int, count: int) -> list[Publisher]:
        loop = asyncio.get_running_loop()
        opened = [
            await loop.create_connection(lambda: Publisher(self.answered, self.failed), "127.0.0.1", port)
            for _ in range(count)
        ]
        return [publisher for _, publisher in opened]

    def next_request(self) -> bytes:
        self._sent += 1
        return self.requests[self._sent % len(self.requests)]

    def answered(self, publisher: Publisher) -> None:
        raise NotImplementedError

    def failed(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(SystemExit(f"publishers: {reason}"))

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class ClosedLoop(Run):
    """The next request goes out when the last one was answered."""

    def __init__(self, requests: list[bytes], *, seconds: float, total: int) -> None:
        super().__init__(requests)
        self._seconds, self._total, self._until = seconds, total, 0.0

    def answered(self, publisher: Publisher) -> None:
        now = time.perf_counter()
        self.seconds.append(now - publisher.began)
        if len(self.seconds) >= self._total or now >= self._until:
            self.finish()
        elif self._sent < self._total:
            publisher.send(self.next_request())

    def start(self, publishers: list[Publisher]) -> None:
        self._until = time.perf_counter() + self._seconds
        for publisher in publishers[: self._total]:
            publisher.send(self.next_request())


class OpenLoop(Run):
    """Requests go out at a rate; latency counts from when each was due."""

    def __init__(self, requests: list[bytes], *, rate: float, total: int) -> None:
        super().__init__(requests)
        self._loop = asyncio.get_running_loop()
        self._rate, self._total = rate, total
        self._forgotten = 0
        self._warm, self._used = asyncio.Event(), 0
        self._free: deque[Publisher] = deque()
        self._due: deque[int] = deque()  # times of the events that wait for a connection
        self._planned = 0
        [request] = requests
        at = request.index(MARK) + 1
        self._before, self._behind = request[:at], request[at + STAMP_DIGITS :]
        self._due_of: dict[Publisher, int] = {}

    def start(self, publishers: list[Publisher]) -> None:
        self._free.extend(publishers)
        self._began_ns = time.monotonic_ns()
        self._tick()

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        due = min(self._total, int((now_ns - self._began_ns) / 1e9 * self._rate) + 1)
        for number in range(self._planned, due):
            self._due.append(self._began_ns + int(number * 1e9 / self._rate))
        self._planned = due
        while self._due and self._free:
            self._send(self._free.popleft())
        if due < self._total:
            self._loop.call_later(_TICK, self._tick)

    def _send(self, publisher: Publisher) -> None:
        at_ns = self._due_of[publisher] = self._due.popleft()
        publisher.send(self._before + b"%0*d" % (STAMP_DIGITS, at_ns) + self._behind)

    def answered(self, publisher: Publisher) -> None:
        self.seconds.append((time.monotonic_ns() - self._due_of[publisher]) / 1e9)
        if self._due:
            self._send(publisher)
        else:
            self._free.append(publisher)
        if self._forgotten + len(self.seconds) == self._total:
            self.finish()
        if len(self.seconds) >= self._used:
            self._warm.set()

    async def meanwhile(self, used: int) -> None:
        """Measure from one line of input to the next, once as many requests were answered; one at least."""
        self._used = used
        await self._warm.wait()
        reply(ready=1)
        await self._loop.run_in_executor(None, sys.stdin.readline)
        self._forgotten, self.seconds = len(self.seconds), []
        await self._loop.run_in_executor(None, sys.stdin.readline)
        self._total = max(self._planned, self._forgotten + 1)  # one is measured, however short it was
        if self._forgotten + len(self.seconds) == self._total:
            self.finish()


def plan(requests: list[bytes], kind: str, *numbers: str) -> ClosedLoop | OpenLoop:
    """The run that the command line asks for."""
    if kind == "rate":
        return OpenLoop(requests, rate=float(numbers[0]), total=int(float(numbers[0]) * float(numbers[1])))
    if kind == "meanwhile":
        return OpenLoop(requests, rate=float(numbers[0]), total=sys.maxsize)
    seconds = float(numbers[0]) if kind == "seconds" else float("inf")
    total = int(numbers[0]) if kind == "total" else sys.maxsize
    return ClosedLoop(requests, seconds=seconds, total=total)


async def measure(port: str, connections: str, file: str, *wanted: str) -> None:
    requests = load(Path(file))
    run = plan(requests, *wanted)
    publishers = await run.connect(int(port), int(connections))
    began, cpu = time.perf_counter(), time.process_time()
    run.start(publishers)
    if isinstance(run, OpenLoop) and wanted[0] == "meanwhile":
        await run.meanwhile(len(publishers))
    await run.done
    say_outcome(run, began, cpu)


def say_outcome(run: Run, began: float, cpu: float) -> None:
    """Answer with what came of a run that began at these times."""
    seconds, times = time.perf_counter() - began, sorted(run.seconds)
    reply(
        requests=len(times),
        seconds=seconds,
        p50_ms=1000 * times[len(times) // 2],
        p99_ms=1000 * times[len(times) * 99 // 100],
        cpu=time.process_time() - cpu,
    )


if __name__ == "__main__":
    uvloop.run(measure(*sys.argv[1:]))
