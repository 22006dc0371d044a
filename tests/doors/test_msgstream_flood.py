"""A client that confirms without end while the storage is slow: what waits is bounded, what it said before holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock.config import MsgstreamSettings
from penstock.core.clock import ManualClock
from penstock.doors.msgstream import MessageStream
from penstock.limits import CONFIRMS
from penstock.values import Item
from tests.doors.msgstream_place import Place, SlowMailbox, slow_engine

FRAME = 10_000  # ids, of five digits: near the most that one may have


class StoppedMailbox(SlowMailbox):
    """Confirms nothing until it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        self.reached.set()
        await self.open.wait()
        return await super().confirm(recipient, month, numbers)


async def test_ids_that_wait_to_be_confirmed_are_bounded(tmp_path: Path) -> None:
    clock = ManualClock()
    async with slow_engine(clock) as engine:
        engine.mailbox = mailbox = StoppedMailbox(clock)
        here = Place(engine, clock, tmp_path, MessageStream, MsgstreamSettings())
        await here.start()
        key = await here.login("flooding")
        await here.emit("flooding")
        async with connect(here.url(key)) as socket:
            await socket.recv()
            await socket.send("1")
            await mailbox.reached.wait()
            frame = ",".join(map(str, range(FRAME, 2 * FRAME)))
            for _ in range(CONFIRMS // FRAME):
                await socket.send(frame)
            await socket.send("1")
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
        assert caught.value.rcvd
        assert caught.value.rcvd.code == 1008
        mailbox.open.set()

        async def nothing_waits() -> bool:
            return (await here.poll(key)).status == 204

        for _ in range(20):
            if await nothing_waits():
                break
        assert await nothing_waits()
        await here.stop()
