"""Devices that come back while the ledger of former lives is being read, or cannot be read, or was trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from penstock.core import background
from penstock.core.clock import ManualClock
from penstock.core.ledger import Ledger, decode, recipient
from penstock.core.members import Alone
from penstock.doors.sps.recall import Recall
from penstock.engines.memory import MemoryEngine
from penstock.errors import DiskFull
from penstock.values import Page

DEVICES = [recipient("sps", name) for name in ("1", "2/phone")]


class Gated:
    """A log that is read only when it is let, and may fail before."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.asked, self.open, self.failures = inner, asyncio.Event(), asyncio.Event(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_index(self, *args: Any, **more: Any) -> Page:
        self.asked.set()
        await self.open.wait()
        if self.failures:
            self.failures -= 1
            raise DiskFull("/data")
        page: Page = await self._inner.read_index(*args, **more)
        return page


async def live(engine: MemoryEngine) -> Ledger:
    ledger = Ledger(engine.log, ManualClock(), node="n")
    await ledger.open(engine.registry)
    return ledger


@asynccontextmanager
async def second_life(*, trimmed: bool = False) -> AsyncIterator[tuple[MemoryEngine, Gated, Recall]]:
    """A server whose first life sent ids 5 to 9 to two devices."""
    async with MemoryEngine() as engine:
        first = await live(engine)
        for who in DEVICES:
            first.sent(who, "/users/1", 5, 9)
        await first.close()
        if trimmed:
            await engine.log.trim(engine.log.followed)
        second, log = await live(engine), Gated(engine.log)
        async with Recall(cast("Any", log), second, engine.registry, Alone()) as recalled:
            yield engine, log, recalled
        await second.close()


async def acked(engine: MemoryEngine) -> list[tuple[str, int, int]]:
    page = await engine.log.read_after(("/_ledger",), engine.log.trimmed_upto)
    events = [event for entry in page.entries for event in decode(entry.body)[1] if event.state == "acked"]
    return sorted((event.recipient, event.first, event.last) for event in events)


async def test_who_comes_back_while_the_ledger_is_read_is_not_forgotten() -> None:
    async with second_life() as (engine, log, recalled):
        recalled.confirm(DEVICES[0], 7)
        await log.asked.wait()
        recalled.confirm(DEVICES[1], 9)  # what is known by now tells nothing about this one
        log.open.set()
        await recalled.confirmed()

        assert await acked(engine) == [("1", 5, 7), ("2/phone", 5, 9)]


async def test_what_one_device_confirms_bit_by_bit_is_recorded_once() -> None:
    async with second_life() as (engine, log, recalled):
        log.open.set()
        for upto in (6, 6, 4, 9, 9, 100):
            recalled.confirm(DEVICES[0], upto)
            await recalled.confirmed()

        assert await acked(engine) == [("1", 5, 6), ("1", 7, 9)]


async def test_a_log_that_cannot_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.01)
    async with second_life() as (engine, log, recalled):
        log.failures = 2
        log.open.set()
        recalled.confirm(DEVICES[0], 9)
        await recalled.confirmed()

        assert await acked(engine) == [("1", 5, 9)]


async def test_what_was_trimmed_stays_as_it_was() -> None:
    async with second_life(trimmed=True) as (engine, log, recalled):
        log.open.set()
        recalled.confirm(DEVICES[0], 9)
        await recalled.confirmed()

        assert await acked(engine) == []


async def test_devices_that_were_sent_the_same_share_a_row() -> None:
    async with second_life() as (engine, log, recalled):
        log.open.set()
        for who in DEVICES:
            recalled.confirm(who, 9)
        await recalled.confirmed()
        page = await engine.log.read_after(("/_ledger",), 0)

        rows = [row for entry in page.entries for row in decode(entry.body)[0].rows if row[1] == "acked"]
        assert [row[3:] for row in rows] == [("/users/1", 5, 9, 2)]


async def test_without_a_ledger_there_is_nothing_to_recall() -> None:
    async with MemoryEngine() as engine:
        ledger = Ledger(engine.log, ManualClock(), node="n", enabled=False)
        async with Recall(engine.log, ledger, engine.registry, Alone()) as recalled:
            recalled.confirm(DEVICES[0], 9)
            await asyncio.wait_for(recalled.confirmed(), 20)
