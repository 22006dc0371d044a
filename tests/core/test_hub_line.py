"""The line before the log: whoever leaves in the middle of his turn, and whatever breaks, the others are served."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from penstock.core import hub as hub_module
from penstock.core.background import Background, Loop, Work
from penstock.core.hub import Hub
from penstock.core.ledger import Recipient
from penstock.engines.memory import MemoryEngine
from penstock.errors import EngineGone
from penstock.settings import HubSettings
from penstock.testing.waiting import TooLate, wait_until_async
from penstock.values import Page
from tests.core.test_hub import Reader, publish

LINE_READERS = 4
SMALL = HubSettings(recent=1)  # who is behind reads the log


class Log:
    """A log that takes its time to say what is newest, and of which reads of `/broken` are cut off."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._log = engine.log
        self.asked = 0
        self.answers = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def newest(self) -> int:
        self.asked += 1
        await self.answers.wait()
        return await self._log.newest()

    async def read_after(self, patterns: tuple[str, ...], after: int, **rest: Any) -> Page:
        if patterns == ("/broken",):
            raise asyncio.CancelledError
        return await self._log.read_after(patterns, after, **rest)


class Ended(Reader):
    """A reader that notes why it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class Unguarded(Background):
    """Loops that end when something that they wait for is cancelled."""

    def forever(self, name: str, work: Work) -> Loop:
        return _UnguardedLoop(self, name, work, None, None, at_once=True)


class _UnguardedLoop(Loop):
    async def _round(self) -> bool:
        await self._work()
        return True


async def check_a_bystander_gets_all(engine: MemoryEngine, hub: Hub, within: float = 20) -> None:
    reader = Reader(Recipient("test", "bystander"))
    hub.start(reader, ("/a",), after=0)
    await wait_until_async(lambda: len(reader.got) == 3, within)
    await publish(engine, "/a")
    await wait_until_async(lambda: len(reader.got) == 4, within)


async def leave_in_the_middle_of_their_turns(background: Background, within: float = 20) -> None:
    async with MemoryEngine() as engine:
        await publish(engine, "/a", "/a", "/a")
        log = Log(engine)
        async with Hub(cast("Any", log), SMALL, background=background) as hub:
            feeds = [hub.start(Reader(), ("/a",), after=10**12) for _ in range(2 * LINE_READERS)]
            await wait_until_async(lambda: log.asked == len(feeds) and hub.waiting_line == LINE_READERS)
            for feed in feeds:
                feed.stop()
            await check_a_bystander_gets_all(engine, hub, within)
            assert hub.failed == 0
            assert not background.failing


async def test_who_leaves_before_the_newest_id_is_known_takes_no_reader_of_the_line_with_him() -> None:
    await leave_in_the_middle_of_their_turns(background := Background())

    assert background.failures["hub.line"] == 0


def wait_for_what_others_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_out(self: Any) -> None:
        self._upto = min(self._after, await asyncio.shield(self._newest))

    monkeypatch.setattr(hub_module._Unseen, "find_out", find_out)


async def test_the_same_check_finds_a_line_whose_readers_leave_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_what_others_cancel(monkeypatch)
    with pytest.raises(TooLate):
        await leave_in_the_middle_of_their_turns(Unguarded(), within=0.5)


async def test_even_then_they_come_again_and_it_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_what_others_cancel(monkeypatch)
    background = Background()
    async with MemoryEngine() as engine:
        await publish(engine, "/a", "/a", "/a")
        log = Log(engine)
        async with Hub(cast("Any", log), SMALL, background=background) as hub:
            feeds = [hub.start(Reader(), ("/a",), after=10**12) for _ in range(LINE_READERS)]
            await wait_until_async(lambda: log.asked == LINE_READERS and not hub.waiting_line)
            for feed in feeds:
                feed.stop()
            await wait_until_async(lambda: background.failures["hub.line"] == LINE_READERS)
            assert [one.loop for one in background.failing] == ["hub.line"]
            await check_a_bystander_gets_all(engine, hub)
            await wait_until_async(lambda: not background.failing)


async def read_what_is_cut_off(background: Background, within: float = 20) -> None:
    async with MemoryEngine() as engine:
        await publish(engine, "/a", "/a", "/a")
        async with Hub(cast("Any", Log(engine)), SMALL, background=background) as hub:
            cut_off = [Ended() for _ in range(LINE_READERS)]
            feeds = [hub.start(reader, ("/broken",), after=0) for reader in cut_off]
            await wait_until_async(lambda: hub.failed == LINE_READERS, within)
            assert all(feed.stopped for feed in feeds)
            assert {type(error) for reader in cut_off for error in reader.errors} == {EngineGone}
            await check_a_bystander_gets_all(engine, hub, within)


async def test_a_read_that_is_cut_off_ends_its_own_reader_alone() -> None:
    await read_what_is_cut_off(background := Background())

    assert background.failures["hub.line"] == LINE_READERS


async def test_the_same_check_finds_a_line_that_ends_with_such_a_read() -> None:
    with pytest.raises(TooLate):
        await read_what_is_cut_off(Unguarded(), within=0.5)


async def test_who_waits_for_the_newest_id_when_the_hub_ends_leaves_nothing_behind() -> None:
    async with MemoryEngine() as engine:
        log, before = Log(engine), asyncio.all_tasks()
        async with Hub(cast("Any", log)) as hub:
            hub.start(Reader(), ("/a",), after=10**12)
            await wait_until_async(lambda: log.asked == 1)
        await wait_until_async(lambda: asyncio.all_tasks() <= before)
