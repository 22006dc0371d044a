"""Promises: awaited like futures, told within `settle`."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.promise import Promise, failed
from penstock.errors import EngineGone


async def settle_soon(promise: Promise[int], value: int) -> None:
    await asyncio.sleep(0)
    promise.value = value
    promise.settle()


async def test_who_awaits_gets_the_value():
    promise: Promise[int] = Promise()
    async with asyncio.TaskGroup() as group:
        group.create_task(settle_soon(promise, 7))
        assert await promise == 7
        assert await promise == 7  # and again, without waiting


async def test_who_awaits_gets_the_error():
    with pytest.raises(EngineGone):
        await failed(EngineGone("gone"))


async def test_callbacks_are_called_within_settle_in_their_order():
    promise: Promise[int] = Promise()
    heard: list[str] = []
    for name in "abc":
        promise.add_done_callback(lambda settled, name=name: heard.append(f"{name}{settled.result()}"))
    promise.value = 1

    promise.settle()

    assert heard == ["a1", "b1", "c1"]
    assert promise.done()


async def test_one_callback_that_raises_does_not_keep_it_from_the_next():
    promise: Promise[int] = Promise()
    heard: list[bool] = []
    promise.add_done_callback(lambda _: 1 / 0)
    promise.add_done_callback(lambda settled: heard.append(settled.done()))

    with pytest.raises(ZeroDivisionError):
        promise.settle()

    assert heard == [True]


async def test_a_callback_that_comes_late_is_called_in_the_next_turn():
    promise: Promise[int] = Promise()
    promise.settle()
    heard: list[Promise[int]] = []

    promise.add_done_callback(heard.append)

    assert heard == []
    await asyncio.sleep(0)
    assert heard == [promise]


async def test_a_cancelled_waiter_leaves_the_promise_to_the_others():
    promise: Promise[int] = Promise()

    async def wait() -> int:
        return await promise

    first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    first.cancel()
    await settle_soon(promise, 3)

    assert await second == 3
    with pytest.raises(asyncio.CancelledError):
        await first
