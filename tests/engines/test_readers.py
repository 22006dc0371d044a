"""Who waits for a reader's thread: short reads go before long ones, and long ones come to their turn."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.engines.sqlite.disk_failures import Damage
from penstock.engines.sqlite.reader_threads import LONG_FIRST, Readers
from penstock.testing import wait_until_async

LONG, SHORT = 12, 24


@asynccontextmanager
async def one_thread(folder: Path, kind: type[Readers] = Readers) -> AsyncIterator[Readers]:
    path = folder / "some.db"
    sqlite3.connect(path).close()
    readers = kind(path, Damage(path, lambda: None), threads=1)
    try:
        yield readers
    finally:
        await readers.close()


async def order_of(readers: Readers) -> list[str]:
    """Occupy the one thread, put long reads in line and then short ones, and let go; how they were served."""
    served: list[str] = []
    held, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        go.wait(20)

    first = asyncio.ensure_future(readers.run(hold))
    await wait_until_async(held.is_set)
    waiting = [
        asyncio.ensure_future(readers.run(lambda _, kind=kind: served.append(kind), long=kind == "long"))
        for kind in ["long"] * LONG + ["short"] * SHORT
    ]
    await wait_until_async(lambda: readers._running > LONG + SHORT)
    go.set()
    await asyncio.gather(first, *waiting)
    return served


def check(served: list[str]) -> None:
    assert served.count("long") == LONG
    assert served.count("short") == SHORT
    last_short = max(at for at, kind in enumerate(served) if kind == "short")
    before = served[:last_short].count("long")
    assert before <= SHORT / (LONG_FIRST - 1) + 1, f"short reads waited for {before} long ones"
    assert before >= SHORT / (LONG_FIRST - 1) - 1, f"only {before} long reads came to their turn"


async def test_short_reads_go_first_and_long_ones_come_to_their_turn(tmp_path: Path) -> None:
    async with one_thread(tmp_path) as readers:
        check(await order_of(readers))


class OneLine(Readers):
    """First come, first served."""

    def _take_next(self) -> None:
        (self._long or self._short).popleft().do()  # the long ones came first


class ShortOnly(Readers):
    """Long reads wait for as long as there are short ones."""

    def _take_next(self) -> None:
        (self._short or self._long).popleft().do()


@pytest.mark.parametrize("worse", [OneLine, ShortOnly])
async def test_the_same_check_finds_worse_lines(tmp_path: Path, worse: type[Readers]) -> None:
    async with one_thread(tmp_path, worse) as readers:
        with pytest.raises(AssertionError, match="long"):
            check(await order_of(readers))


async def test_a_reader_that_gave_up_is_passed_over(tmp_path: Path) -> None:
    async with one_thread(tmp_path) as readers:
        held, go = threading.Event(), threading.Event()
        read: list[str] = []

        def hold(_: object) -> None:
            held.set()
            go.wait(20)

        first = asyncio.ensure_future(readers.run(hold))
        await wait_until_async(held.is_set)
        left = asyncio.ensure_future(readers.run(lambda _: read.append("left")))
        stays = asyncio.ensure_future(readers.run(lambda _: read.append("stays")))
        await wait_until_async(lambda: readers._running == 3)
        left.cancel()
        await asyncio.wait({left})  # the line hears of it in another turn of the loop
        go.set()
        await asyncio.gather(first, stays)
        assert read == ["stays"]
