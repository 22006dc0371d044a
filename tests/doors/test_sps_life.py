"""Silence and signs of life: what happens on a wire on which nothing happens. Time is moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.clock import ManualClock
from penstock.core.log import Log
from penstock.doors.sps import frames, online_and_rooms
from penstock.doors.sps.frames import LastWritten
from penstock.doors.sps.online_and_rooms import WireCommands
from penstock.doors.sps.presence_stream import Presence
from penstock.doors.sps.subscribe_pace import AT_ONCE, Admission
from penstock.doors.sps.wire import DeviceWire
from penstock.engines.memory import MemoryEngine
from penstock.errors import Busy, InputInvalid
from penstock.http.requests import Request
from penstock.http.responses import LIVE, Response
from penstock.testing import wait_until_async
from penstock.values import Appended, Batch
from tests.doors.sps_place import place


async def next_line(reader: asyncio.StreamReader) -> Any:
    """The next line; "idle" for a blank one, None at the end."""
    line = await asyncio.wait_for(reader.readline(), 20)
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


@pytest.mark.parametrize("many", [1, 16])
@pytest.mark.parametrize("tid", ["earth", "/rooms/>"])
async def test_what_everybody_in_a_room_gets_is_no_silence(tmp_path: Path, tid: str, many: int) -> None:
    async with place(tmp_path, many=many) as here:
        wires = [await here.subscribe(f"uid={user}&tid={tid}") for user in range(1, 4)]
        assert [await event_of(reader) for reader, _ in wires] == ["open"] * 3
        for _ in range(2):
            here.time.advance(20)
            await here.notify("room?tid=earth")
            assert [await event_of(reader) for reader, _ in wires] == ["message"] * 3

        here.time.advance(31)
        assert [await next_line(reader) for reader, _ in wires] == ["idle"] * 3


@pytest.mark.parametrize("many", [1, 16])
async def test_what_a_room_got_before_it_was_joined_is_silence(tmp_path: Path, many: int) -> None:
    async with place(tmp_path, many=many) as here:
        (member, _), (late, _) = await here.subscribe("uid=7&tid=earth"), await here.subscribe("uid=8")
        assert [await event_of(reader) for reader in (member, late)] == ["open", "open"]
        here.time.advance(20)
        await here.notify("room?tid=earth")
        assert await event_of(member) == "message"
        assert await here.ask("POST", "/join?uid=8&tid=earth") == 200

        here.time.advance(11)
        assert await next_line(late) == "idle"


def test_patterns_are_noted_as_long_as_a_wire_has_them_and_no_more_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "WRITTEN", 2)
    written = LastWritten()
    first = written.watch(("/users/7", "/rooms/*", "/*/b"))
    second = written.watch(("/rooms/*", "/shop/>"))
    assert (first, second) == (("/rooms/*", "/*/b"), ("/rooms/*",))
    written.note("/rooms/a", 1.0)
    written.note("/shop/b", 2.0)
    assert [written.of((one,)) for one in ("/rooms/*", "/*/b", "/shop/b", "/shop/>")] == [1.0, 2.0, 2.0, 0.0]
    written.unwatch(first)
    assert [written.of((one,)) for one in ("/rooms/*", "/*/b")] == [1.0, 0.0]
    third = written.watch(("/shop/>",))
    written.note("/shop/c", 3.0)
    assert written.of(("/rooms/*", "/shop/>")) == 3.0
    written.unwatch((*second, *third))
    assert written.of(("/rooms/*", "/shop/>", "/rooms/a")) == 0.0


@pytest.mark.parametrize("left", ["change", "end"])
async def test_a_wire_leaves_no_pattern_behind(tmp_path: Path, left: str) -> None:
    async with place(tmp_path) as here:
        reader, writer = await here.subscribe("uid=7&tid=/rooms/*")
        assert await event_of(reader) == "open"
        kept = here.door.wires.all[0].frames.last_written
        assert kept.watch(("/rooms/*",)) == ("/rooms/*",)
        kept.unwatch(("/rooms/*",))
        await here.notify("room?tid=earth")
        assert kept.of(("/rooms/*",)) > 0
        if left == "change":
            assert await here.ask("PUT", "/rooms?uid=7&tid=earth") == 200
        else:
            writer.transport.abort()
            await wait_until_async(lambda: not here.online("7"))

        assert kept.of(("/rooms/*",)) == 0


@pytest.mark.parametrize("at_once", [1, 1 << 40])
async def test_many_devices_of_a_user_are_shown_a_few_at_a_time(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online_and_rooms, "SHOWN_AT_ONCE", at_once)
    turn, shown, show = 0, Counter[int](), WireCommands._shown

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    def noted(self: WireCommands, wire: DeviceWire) -> dict[str, object]:
        shown[turn] += 1
        return show(self, wire)

    monkeypatch.setattr(WireCommands, "_shown", noted)
    async with place(tmp_path) as here:
        for hid in range(1, 5):
            await here.subscribe(f"uid=7&hid={hid}")
        next_turn()
        assert await here.ask("GET", "/online?uid=7") == 200

    assert list(shown.values()) == ([1, 1, 1, 1] if at_once == 1 else [4])


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

        assert await asyncio.wait_for(sse.readexactly(3), 20) == b":\n\n"
        assert await asyncio.wait_for(raw.readexactly(2), 20) == b"\r\n"


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
        real = 10 * 366 * 24 * 3600  # the authenticator looks at the machine's clock, the door at the one moved by hand
        token = here.authenticator.keys.issue("7", ttl=real, now=now)
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


async def test_a_storm_of_comings_is_one_entry() -> None:
    async with MemoryEngine() as engine:
        async with Presence(engine.log, ManualClock()) as presence:
            for number in range(5000):
                presence.note("online", str(number), "phone")
        page = await engine.log.read_after(("/_presence",), 0)

    lines = [json.loads(line) for entry in page.entries for line in entry.body.splitlines()]
    assert len(page.entries) == 1
    assert [line.get("uid") for line in lines] == [None, *map(str, range(5000))]


class Refusing:
    """A log that takes nothing for a while."""

    def __init__(self, log: Log, times: int) -> None:
        self._log, self._times = log, times

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        self._times -= 1
        if self._times < 0:
            return self._log.append(batch)
        refused: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        refused.set_exception(Busy("log.queue", 1))
        return refused


async def test_comings_wait_for_a_log_that_is_busy_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.doors.sps.presence_stream.RETRY_SECONDS", 0.01)
    async with MemoryEngine() as engine:
        async with Presence(cast("Log", Refusing(engine.log, 2)), ManualClock()) as presence:
            presence.note("online", "7", "")
            presence.note("offline", "7", "")
            await wait_until_async(lambda: engine.log.followed > 0)
        page = await engine.log.read_after(("/_presence",), 0)

    assert [json.loads(entry.body)["state"] for entry in page.entries] == ["reset", "online", "offline"]


async def test_a_storm_of_subscribes_passes_in_order_a_few_in_each_turn() -> None:
    passed: list[object] = []

    def passes(request: object) -> Response:
        if request == 40:
            raise InputInvalid("parameter uid", "is missing")
        passed.append(request)
        return LIVE

    admission = Admission(passes)
    answers = [admission(cast("Request", number)) for number in range(100)]
    assert passed == list(range(AT_ONCE))
    await asyncio.sleep(0)
    assert len(passed) == 2 * AT_ONCE
    waiting = [answer for answer in answers if isinstance(answer, asyncio.Future)]
    done = await asyncio.gather(*waiting, return_exceptions=True)

    assert passed == [number for number in range(100) if number != 40]
    assert isinstance(done[40 - AT_ONCE], InputInvalid)
