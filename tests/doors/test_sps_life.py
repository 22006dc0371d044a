"""Silence and signs of life: what happens on a wire on which nothing happens. Time is moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from penstock.config import Settings
from penstock.core.clock import ManualClock
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.doors.sps import Sps
from penstock.server.auth import Gate, open_keys
from penstock.server.context import Context
from penstock.server.listener import Listener
from penstock.server.routing import Router
from penstock.server.settings import ConnectionSettings
from penstock.server.wheel import Wheel
from penstock.storage.memory import MemoryEngine
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft


class ManualTime:
    """A loop's time that stands still until it is moved; what is due is called on the way."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._booked: list[tuple[float, int, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self._now + delay, callback, (), asyncio.get_running_loop())
        heappush(self._booked, (self._now + delay, len(self._booked), callback, handle))
        return handle

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._booked and self._booked[0][0] <= end:
            self._now, _, callback, handle = heappop(self._booked)
            if not handle.cancelled():
                callback()
        self._now = end


class Place:
    """The door on the memory engine, behind a real socket."""

    def __init__(self, engine: MemoryEngine, time: ManualTime, gate: Gate) -> None:
        self.engine, self.time, self.gate = engine, time, gate
        self.listener: Listener

    async def publish(self, uid: str, body: bytes) -> None:
        await self.engine.log.append(Batch((Draft(f"/users/{uid}", body),)))

    async def subscribe(self, query: str, token: str = "admin") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        writer.write(f"GET /subscribe?{query} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return reader, writer

    async def ask(self, method: str, target: str) -> int:
        reader, writer = await asyncio.open_connection(*self.listener.address)
        writer.write(f"{method} {target} HTTP/1.0\r\nAuthorization: Bearer admin\r\n\r\n".encode())
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    async def presence(self) -> list[tuple[str, str]]:
        page = await self.engine.log.read_after(("/_presence",), 0)
        lines = [json.loads(line) for entry in page.entries for line in entry.body.splitlines()]
        return [(line["state"], line.get("hid", "")) for line in lines]


@asynccontextmanager
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    time = ManualTime()
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        clock, gate = ManualClock(), Gate(open_keys(tmp_path), "admin")
        ledger = Ledger(engine.log, clock, node="test")
        await ledger.open(engine.registry)
        context = Context(
            engine.log, engine.mailbox, engine.registry, hub, ledger, gate, clock, Wheel(time), 1024 * 1024
        )  # fmt: skip
        made = Place(engine, time, gate)
        async with Sps(context, Settings(), time.time) as door:
            async with Listener(Router(door.routes()), ConnectionSettings(port=0)) as made.listener:
                yield made
        await ledger.close()


async def next_line(reader: asyncio.StreamReader) -> Any:
    """The next line; "idle" for a blank one, None at the end."""
    line = await asyncio.wait_for(reader.readline(), 10)
    return "idle" if line == b"\r\n" else json.loads(line) if line else None


async def event_of(reader: asyncio.StreamReader) -> str:
    line = await next_line(reader)
    return str(line["event"])


async def test_silence_is_broken_after_the_interval_and_again(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        reader, _ = await here.subscribe("uid=7")
        assert await event_of(reader) == "open"
        here.time.advance(29)
        await here.publish("7", b"not silent")
        here.time.advance(29)  # 29 s after the event
        await here.publish("7", b"not silent either")
        assert [await event_of(reader), await event_of(reader)] == ["message", "message"]

        here.time.advance(31)
        assert await next_line(reader) == "idle"
        here.time.advance(31)
        assert await next_line(reader) == "idle"


async def test_a_client_chooses_its_interval_within_bounds_or_none(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        (quick, _), (never, _) = await here.subscribe("uid=7&i=1"), await here.subscribe("uid=8&i=0")
        assert [await event_of(quick), await event_of(never)] == ["open", "open"]
        here.time.advance(4.5)
        await here.publish("7", b"first")
        here.time.advance(5.6)
        here.time.advance(10_000)
        await here.publish("8", b"first")

        assert await event_of(quick) == "message"
        assert await next_line(quick) == "idle"
        assert await event_of(never) == "message"


async def test_an_event_source_gets_a_comment_and_raw_a_blank_line(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        (sse, _), (raw, _) = await here.subscribe("uid=7&format=sse"), await here.subscribe("uid=8&format=raw")
        await sse.readuntil(b"\n\n")
        here.time.advance(31)

        assert await asyncio.wait_for(sse.readexactly(3), 10) == b":\n\n"
        assert await asyncio.wait_for(raw.readexactly(2), 10) == b"\r\n"


async def test_who_promised_signs_of_life_and_gives_none_is_cut(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        (silent, _), (lively, _), (free, _) = [
            await here.subscribe(query) for query in ("uid=7&hid=a&s=60&i=0", "uid=7&hid=b&s=60&i=0", "uid=7&hid=c&i=0")
        ]
        for reader in (silent, lively, free):
            assert await event_of(reader) == "open"
        here.time.advance(150)
        assert await here.ask("POST", "/subsist?uid=7&hid=b") == 204
        here.time.advance(31)

        assert await event_of(silent) == "silent"
        assert await next_line(silent) is None
        assert await here.ask("POST", "/subsist?uid=7&hid=a") == 404
        assert await here.ask("GET", "/subsist?uid=7&hid=a") == 405
        await here.publish("7", b"for those who are left")
        assert [await event_of(lively), await event_of(free)] == ["message", "message"]


async def test_the_end_of_the_token_is_the_end_of_the_wire(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        now = ManualClock().now_ms() // 1000
        real = 10 * 366 * 24 * 3600  # the gate looks at the machine's clock, the door at the one moved by hand
        token = here.gate.keys.issue("7", ttl=real, now=now)
        reader, _ = await here.subscribe("uid=7&i=0", token)
        assert await event_of(reader) == "open"
        here.time.advance(real - 2)
        await here.publish("7", b"just in time")
        here.time.advance(3)

        assert [await event_of(reader), await event_of(reader), await next_line(reader)] == ["message", "expired", None]


async def test_every_coming_and_going_is_in_the_log_and_a_replacement_is_neither(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        _, first = await here.subscribe("uid=7&hid=a")
        _, second = await here.subscribe("uid=7&hid=a")
        _, other = await here.subscribe("uid=7&hid=b")
        first.close()
        other.close()
        expected = [("reset", ""), ("online", "a"), ("online", "b"), ("offline", "b")]

        async def written() -> bool:
            return await here.presence() == expected

        await wait_until_async(written)
        second.close()
        expected.append(("offline", "a"))
        await wait_until_async(written)


async def test_a_storm_of_comings_is_a_few_entries(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await asyncio.gather(*(here.subscribe(f"uid={number}") for number in range(300)))

        async def all_online() -> bool:
            return len(await here.presence()) == 301

        await wait_until_async(all_online)
        page = await here.engine.log.read_after(("/_presence",), 0)
        assert len(page.entries) < 150
