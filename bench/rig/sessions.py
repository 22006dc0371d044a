"""Clients of the message stream.

    python -m bench.rig.sessions hold PORT REQUESTS            opens them all, answers {"open"}, and holds them
    python -m bench.rig.sessions listen PORT REQUESTS N FILE   WebSockets that confirm every pack; {"open"}, and after
                                                               N packs {"packs"}: how late each was is in FILE
    python -m bench.rig.sessions emit PORT REQUESTS RATE S     emits at a rate, to one actor after the other
    python -m bench.rig.sessions poll PORT REQUESTS COUNT S    short polls on COUNT connections, one after the other

Each event carries the time at which it was due behind its mark, as in `publishers`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from bench.rig.child import reply
from bench.rig.requests import MARK, STAMP_DIGITS, load

_STAMP = re.compile(MARK + rb"(\d{%d})" % STAMP_DIGITS)
_PACK = re.compile(rb'[{,]"(\d+)":\[\[')
_MASK = b"\0\0\0\0"  # a mask that changes nothing is a mask
_TICK = 0.001


class Peer(asyncio.Protocol):
    """One connection; what comes goes to *take*."""

    def __init__(self, take: Callable[[Peer, bytes], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._take(self, data)


async def connect(port: str, count: int, take: Callable[[Peer, bytes], None]) -> list[Peer]:
    """Open connections, one after the other."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Peer(take), "127.0.0.1", int(port)))[1] for _ in range(count)]


async def hold(port: str, file: str) -> None:
    requests = load(Path(file))
    peers = await connect(port, len(requests), lambda peer, data: None)
    for peer, request in zip(peers, requests, strict=True):
        peer.transport.write(request)
    reply(open=len(peers))
    await asyncio.get_running_loop().create_future()


async def listen(port: str, file: str, wanted: str, out: str) -> None:
    requests, done = load(Path(file)), asyncio.get_running_loop().create_future()
    all_open = asyncio.Event()
    late: array[int] = array("q")
    opened = 0

    def take(peer: Peer, data: bytes) -> None:
        nonlocal opened
        if data.startswith(b"HTTP/1.1 101"):
            opened += 1
            if opened == len(requests):
                all_open.set()
            return
        now = time.monotonic_ns()
        late.extend([now - int(due) for due in _STAMP.findall(data)])
        if ids := b",".join(_PACK.findall(data)):
            peer.transport.write(b"\x81%c%b%b" % (0x80 | len(ids), _MASK, ids))
        if len(late) >= int(wanted) and not done.done():
            done.set_result(None)

    peers = await connect(port, len(requests), take)
    for peer, request in zip(peers, requests, strict=True):
        peer.transport.write(request)
    await all_open.wait()
    reply(open=opened)
    await done
    Path(out).write_bytes(late.tobytes())  # noqa: ASYNC240 - nothing else goes on any more
    reply(packs=len(late))


async def emit(port: str, file: str, rate: str, seconds: str) -> None:
    requests, total = load(Path(file)), int(float(rate) * float(seconds))
    done = asyncio.get_running_loop().create_future()
    free: deque[Peer] = deque()
    answered = 0

    def take(peer: Peer, data: bytes) -> None:
        nonlocal answered
        if not data.startswith(b"HTTP/1.1 200"):
            done.set_exception(SystemExit(f"emit was answered with {data[:300]!r}"))
        answered += 1
        free.append(peer)
        if answered == total and not done.done():
            done.set_result(None)

    free.extend(await connect(port, 64, take))
    began, sent = time.monotonic_ns(), 0
    while sent < total:
        due = min(total, int((time.monotonic_ns() - began) / 1e9 * float(rate)) + 1)
        while sent < due and free:
            at = b"%0*d" % (STAMP_DIGITS, began + int(sent * 1e9 / float(rate)))
            request = requests[sent % len(requests)]
            place = request.index(MARK) + 1
            free.popleft().transport.write(request[:place] + at + request[place + STAMP_DIGITS :])
            sent += 1
        await asyncio.sleep(_TICK)
    await done
    reply(emitted=answered)


async def poll(port: str, file: str, count: str, seconds: str) -> None:
    requests = load(Path(file))
    polls, until = 0, time.perf_counter() + float(seconds)
    turn = {}

    def take(peer: Peer, data: bytes) -> None:
        nonlocal polls
        if not data.startswith(b"HTTP/1.1 204"):
            raise SystemExit(f"a poll was answered with {data[:300]!r}")
        polls += 1
        peer.transport.write(turn[peer])

    peers = await connect(port, int(count), take)
    cpu, began = time.process_time(), time.perf_counter()
    for number, peer in enumerate(peers):
        turn[peer] = requests[number % len(requests)]
        peer.transport.write(turn[peer])
    await asyncio.sleep(until - time.perf_counter())
    reply(polls=polls, seconds=time.perf_counter() - began, cpu=time.process_time() - cpu)


if __name__ == "__main__":
    uvloop.run({"hold": hold, "listen": listen, "emit": emit, "poll": poll}[sys.argv[1]](*sys.argv[2:]))
