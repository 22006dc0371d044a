"""After a restart thousands come back at once: the newest entries are read once for all of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import hub as hubs
from penstock.core.feed import Feed
from penstock.core.hub import CROWD, JOINS, Hub
from penstock.engines.memory import MemoryEngine
from penstock.errors import DiskFull
from penstock.settings import HubSettings
from penstock.values import Page
from tests.core.test_hub import Reader, publish, settle

STREAMS = ("/a", "/b", "/c/d", "/_x", "/c/_y")
PATTERNS = [("/a",), ("/a", "/b"), (">",), ("/c/*",), ("/_x", "/a"), ("/c/_y",)]


class Counting:
    """A log that counts how often it is read, and may fail at that."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.reads, self.failures = inner, 0, 0
        self.everything = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_after(self, patterns: tuple[str, ...], *args: Any, **more: Any) -> Page:
        self.reads += 1
        if patterns == (">",):
            self.everything.set()
        await asyncio.sleep(0)  # a disk would take its time
        if patterns == (">",) and self.failures:
            self.failures -= 1
            raise DiskFull("/data")
        page: Page = await self._inner.read_after(patterns, *args, **more)
        return page


async def all_settle(feeds: list[Feed]) -> None:
    for feed in feeds:
        await settle(feed)


async def come_back(log: Counting, count: int) -> list[list[int]]:
    """What *count* readers of three streams get who come to a server that has just started."""
    async with Hub(cast("Any", log)) as hub:
        readers = [Reader() for _ in range(count)]
        await all_settle([hub.start(reader, ("/a", "/b", f"/u{n}"), after=0) for n, reader in enumerate(readers)])
        return [reader.ids for reader in readers]


async def test_the_log_is_read_a_few_times_for_hundreds_of_readers() -> None:
    async with MemoryEngine() as engine:
        await publish(engine, *["/a", "/b", "/_x"] * 30)
        log = Counting(engine.log)

        got = await come_back(log, 400)

        assert log.reads < 30
        assert all(ids == got[0] for ids in got)
        assert len(got[0]) == 60


async def test_a_few_readers_do_not_make_it_read_everything() -> None:
    async with MemoryEngine() as engine:
        await publish(engine, *["/a", "/b"] * 30)
        log = Counting(engine.log)

        await come_back(log, CROWD - 1)

        assert log.reads == CROWD - 1


async def test_a_log_that_cannot_be_read_at_once_is_read_for_each() -> None:
    async with MemoryEngine() as engine:
        await publish(engine, *["/a", "/b"] * 30)
        log = Counting(engine.log)
        log.failures = 1

        got = await come_back(log, 50)

        assert [len(ids) for ids in got] == [60] * 50


async def test_what_was_erased_meanwhile_is_not_remembered() -> None:
    async with MemoryEngine() as engine:
        await publish(engine, *["/a"] * 10)
        log = Counting(engine.log)
        async with Hub(cast("Any", log)) as hub:
            feeds = [hub.start(Reader(), ("/a",), after=0) for _ in range(20)]
            await log.everything.wait()
            hub.forget_recent()
            await all_settle(feeds)

            assert not hub._recent._entries


async def test_others_have_their_turn_while_a_crowd_is_served_from_memory() -> None:
    async with MemoryEngine() as engine:
        await publish(engine, *["/a"] * 10)
        async with Hub(engine.log, readers=1) as hub:
            first = [hub.start(Reader(), ("/a",), after=0) for _ in range(CROWD)]
            await all_settle(first)
            crowd = [Reader() for _ in range(10 * JOINS)]
            for reader in crowd:
                reader.full = True
            feeds = [hub.start(reader, ("/a",), after=0) for reader in crowd]
            for reader, feed in zip(crowd, feeds, strict=True):
                reader.full = False
                feed.resume()

            await asyncio.sleep(0)
            await asyncio.sleep(0)

            assert sum(bool(reader.got) for reader in crowd) <= 2 * JOINS
            await all_settle(feeds)
            assert all(len(reader.got) == 10 for reader in crowd)


# ── against the log ────────────────────────────────────────────────────────────────────────────

wanted = st.lists(
    st.tuples(st.sampled_from(PATTERNS), st.integers(0, 60), st.booleans()), min_size=CROWD, max_size=2 * CROWD
)


async def check_everybody_gets_what_the_log_has(
    before: list[str], wanted: list[tuple[tuple[str, ...], int, bool]], meanwhile: list[str], limit: int
) -> None:
    async with MemoryEngine() as engine:
        for stream in before:
            await publish(engine, stream)
        async with Hub(cast("Any", Counting(engine.log)), HubSettings(recent=limit), alone=True) as hub:
            began = [min(after, hub.position) for _, after, _ in wanted]
            readers = [Reader() for _ in wanted]
            feeds = [
                hub.start(reader, patterns, after=after, meta=meta)
                for reader, (patterns, after, meta) in zip(readers, wanted, strict=True)
            ]
            for stream in meanwhile:
                await publish(engine, stream)
            await all_settle(feeds)
        for reader, after, (patterns, _, meta) in zip(readers, began, wanted, strict=True):
            page = await engine.log.read_after(patterns, after, meta=meta, limit=10_000)
            assert reader.ids == [entry.id for entry in page.entries]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(STREAMS), max_size=25),
    wanted,
    st.lists(st.sampled_from(STREAMS), max_size=8),
    st.sampled_from([4, 16, 8192]),
)
def test_everybody_gets_exactly_what_the_log_has(
    before: list[str], wanted: list[tuple[tuple[str, ...], int, bool]], meanwhile: list[str], limit: int
) -> None:
    asyncio.run(check_everybody_gets_what_the_log_has(before, wanted, meanwhile, limit))


async def test_the_same_check_finds_a_hub_that_takes_what_it_recalled_for_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs.RecentEntries, "reaches", lambda recent, feed: feed.position >= recent._preceding)
    wanted = [(("/_x", "/a"), 0, False)] * (4 * CROWD)
    with pytest.raises(AssertionError):
        await check_everybody_gets_what_the_log_has(["/a", "/_x", "/a"], wanted, [], 8192)
