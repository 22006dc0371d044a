"""What the hub holds and hands over is bounded in bytes, not only in entries."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from penstock.core import feed as feeds
from penstock.core import hub as hubs
from penstock.core.feed import SLICE_BYTES
from penstock.core.hub import CROWD, PAGE_BYTES, Hub
from penstock.engines.memory import MemoryEngine
from penstock.limits import ENTRY_BYTES
from penstock.settings import HubSettings
from penstock.values import Batch, Draft, Entry, Page
from tests.core.test_hub import Reader, settle

RECENT_BYTES = 4 << 20
MIB = 1 << 20


class Copying:
    """A log whose pages have bodies of their own, as a disk's would."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.read_bytes = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_after(self, patterns: tuple[str, ...], *args: Any, **more: Any) -> Page:
        page: Page = await self._inner.read_after(patterns, *args, **more)
        await asyncio.sleep(0)
        entries = tuple(replace(entry, body=bytes(bytearray(entry.body))) for entry in page.entries)
        if patterns == (">",):
            self.read_bytes += sum(len(entry.body) for entry in entries)
        return replace(page, entries=entries)


async def recall_everything(self: Hub, begin: int, upto: int, room: int) -> tuple[deque[Entry], int, int]:
    """The sabotage: the room is looked at when all is read."""
    found, after = deque[Entry](), begin
    while after < upto:
        page = await self._log.read_after((">",), after)
        found.extend(page.entries)
        after = page.upto
    return found, begin, room


@pytest.mark.parametrize("sabotage", [None, recall_everything])
async def test_a_recall_of_large_entries_holds_no_more_than_there_is_room_for(
    sabotage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage:
        monkeypatch.setattr(Hub, "_read_back", sabotage)
    body = bytes(ENTRY_BYTES)
    async with MemoryEngine() as engine:
        for _ in range(100):
            await engine.log.append(Batch((Draft("/large", body),)))
        log = Copying(engine.log)
        async with Hub(cast("Any", log), HubSettings(recent_bytes=RECENT_BYTES)) as hub:
            line = set(hub._tasks._running)
            tracemalloc.start()
            try:
                # They wait for a stream of their own, so that nothing but the recall reads bodies.
                for number in range(CROWD):
                    hub.start(Reader(), (f"/none/{number}",), after=1)
                [recall] = hub._tasks._running - line
                await recall
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

            held = hub._recent._bytes
            assert 0 < held <= RECENT_BYTES
            # What was read is a stretch of 64 ids; what was held are the recent entries and a page.
            assert (peak <= RECENT_BYTES + 2 * PAGE_BYTES + MIB and log.read_bytes <= 65 * MIB) is (sabotage is None)


class Weighing(Reader):
    """Notes how many bytes it is given in which turn of the loop."""

    turn = 0
    weights: Counter[int]
    largest = 0

    def deliver(self, entries: Sequence[Entry]) -> None:
        size = sum(len(entry.body) for entry in entries)
        Weighing.weights[Weighing.turn] += size
        Weighing.largest = max(Weighing.largest, size)
        super().deliver(entries)


async def count_turns() -> None:
    while True:
        Weighing.turn += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("sabotage", [False, True])
async def test_many_feeds_that_join_are_given_little_at_a_time(sabotage: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sabotage:
        for module in (hubs, feeds):
            monkeypatch.setattr(module, "SLICE_BYTES", 1 << 40)
    Weighing.turn, Weighing.weights, Weighing.largest = 0, Counter(), 0
    turns = asyncio.create_task(count_turns())
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        for number in range(30):
            await engine.log.append(Batch((Draft("/a", bytes(100_000)), Draft("/b", b"%d" % number))))
        readers = [Weighing() for _ in range(40)]
        joining = []
        for number, reader in enumerate(readers):
            reader.full = True
            joining.append(hub.start(reader, ("/a", "/b") if number % 2 else (">",), after=0))
        for reader, feed in zip(readers, joining, strict=True):
            reader.full = False
            feed.resume()
        for feed in joining:
            await settle(feed)

        expected = [e.id for e in (await engine.log.read_after((">",), 0)).entries]
        assert all(reader.ids == expected for reader in readers)
        within = Weighing.largest <= SLICE_BYTES and max(Weighing.weights.values()) <= 8 * 2 * SLICE_BYTES
        assert within is not sabotage
    turns.cancel()


async def test_what_waited_for_a_slow_reader_comes_in_slices() -> None:
    async with MemoryEngine() as engine, Hub(engine.log) as hub:
        reader = Weighing()
        Weighing.turn, Weighing.weights, Weighing.largest = 0, Counter(), 0
        feed = hub.start(reader, ("/a",))
        reader.full = True
        for _ in range(50):
            await engine.log.append(Batch((Draft("/a", bytes(100_000)),)))
        assert not feed.behind
        reader.full = False
        feed.resume()
        await settle(feed)

        assert len(reader.got) == 50
        assert [entry.index for entry in reader.got] == list(range(50))
        assert Weighing.largest <= SLICE_BYTES
        await engine.log.append(Batch((Draft("/a", b"live"),)))
        assert reader.got[-1].body == b"live"
