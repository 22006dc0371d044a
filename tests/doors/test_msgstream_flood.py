"""A client that confirms without end while the storage is slow: what waits is bounded, what it said before holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from penstock.core.clock import ManualClock
from penstock.doors.msgstream import MessageStreamDoor
from penstock.limits import CONFIRMS
from penstock.settings import MsgstreamSettings
from penstock.values import Item
from penstock.wire import msgstream_session
from tests.doors.msgstream_place import Place, SlowMailbox, slow_engine

FRAME = 10_000  # ids, of five digits: near the most that one may have
WITHIN = 20.0  # seconds


class StoppedMailbox(SlowMailbox):
    """Confirms nothing until it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def confirm(self, recipient: str, month: str, numbers: Sequence[int]) -> list[Item]:
        self.reached.set()
        await self.open.wait()
        return await super().confirm(recipient, month, numbers)


async def flood(here: Place, mailbox: StoppedMailbox, key: str) -> int:
    """The code with which somebody is closed who confirms one id more than may wait."""
    async with connect(here.url(key)) as socket:
        await socket.recv()
        await socket.send("1")
        await mailbox.reached.wait()
        frame = ",".join(map(str, range(FRAME, 2 * FRAME)))
        for _ in range(CONFIRMS // FRAME):
            await socket.send(frame)
        await socket.send("1")
        with suppress(ConnectionClosed):
            async with asyncio.timeout(WITHIN):
                await socket.recv()
        assert socket.close_code is not None
        return socket.close_code


async def check_what_waits_is_bounded(keys: Path) -> None:
    clock = ManualClock()
    async with slow_engine(clock) as engine:
        engine.mailbox = mailbox = StoppedMailbox(clock)
        here = Place(engine, clock, keys, MessageStreamDoor, MsgstreamSettings())
        await here.start()
        try:
            key = await here.login("flooding")
            await here.emit("flooding")

            assert await flood(here, mailbox, key) == 1008
            mailbox.open.set()

            async def nothing_waits() -> bool:
                return (await here.poll(key)).status == 204

            for _ in range(20):
                if await nothing_waits():
                    break
            assert await nothing_waits()
        finally:
            mailbox.open.set()
            await here.stop()


async def test_ids_that_wait_to_be_confirmed_are_bounded(tmp_path: Path) -> None:
    await check_what_waits_is_bounded(tmp_path)


async def test_a_session_that_notes_ids_without_bound_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotage: the limit is gone, so nobody is closed."""
    monkeypatch.setattr(msgstream_session, "CONFIRMS", 2**63)
    monkeypatch.setattr("tests.doors.test_msgstream_flood.WITHIN", 1.0)

    with pytest.raises(TimeoutError):
        await check_what_waits_is_bounded(tmp_path)
