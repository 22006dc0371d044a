"""Every byte, exactly once, in order: random cuts, random joins, publishers that crash, against a model.

The model is a dict: what was sent to each seq. A reader that joined a segment, whenever it did, has got exactly that
when the segment has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.client.trickle import Publisher, Subscriber
from penstock.testing import start_server, wait_until_async
from tests.doors.trickle_place import Peer, Place, place
from tests.http.wires import on_uvloop

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.binary(min_size=1, max_size=5000)),
        st.tuples(st.just("join"), st.integers(-3, 0)),
        st.tuples(st.sampled_from(["end", "crash", "reset"]), st.none()),
    ),
    max_size=25,
)


class Model:
    """What was sent, and who reads what."""

    def __init__(self, node: Place) -> None:
        self._node = node
        self.sent: dict[int, bytes] = {}
        self.seq = 0  # that is being written
        self._posting: Peer | None = None
        self._reads: list[tuple[int, asyncio.Task[bytes]]] = []

    async def do(self, step: str, value: object) -> None:
        if step == "send":
            assert isinstance(value, bytes)
            posting = self._posting = self._posting or await self._node.post("ch", self.seq)
            posting.send(value)
            self.sent[self.seq] = self.sent.get(self.seq, b"") + value
            await self._arrived()
        elif step == "join":
            assert isinstance(value, int)
            await self._join(max(0, self.seq + value))
        elif self._posting is not None:
            await self._stop(step)

    async def _arrived(self) -> None:
        channel = self._node.door.channels.get("ch")
        assert channel is not None
        await wait_until_async(lambda: channel.size_of(self.seq) == len(self.sent[self.seq]))

    async def _join(self, seq: int) -> None:
        channel = self._node.door.channels.get("ch")
        assert channel is not None
        segment = channel.find(seq, 0)
        if segment is None:
            return
        count = len(segment.readers)
        reader = await self._node.get("ch", seq)
        self._reads.append((seq, asyncio.create_task(self._read(reader))))
        await wait_until_async(lambda: len(segment.readers) > count or bool(segment.end))

    async def _read(self, reader: Peer) -> bytes:
        assert await reader.head() == 200
        return await reader.rest()

    async def _stop(self, how: str) -> None:
        posting, self._posting = self._posting, None
        assert posting is not None
        if how == "crash":
            posting.cut()
            await wait_until_async(lambda: not any(s.writer for s in self._node.door.channels.get("ch") or ()))
            return
        if how == "reset":
            assert await (await self._node.post("ch", self.seq + 1, end=True, Lp_Trickle_Reset="1")).head() == 200
            assert await posting.head() == 409
            self.sent[self.seq + 1] = b""
            self.seq += 2
            return
        posting.send(end=True)
        assert await posting.head() == 200
        self.seq += 1

    async def check(self) -> None:
        """End what is open; then everybody has what the model has."""
        assert await self._node.ask("DELETE", "ch") == 200
        for seq, reading in self._reads:
            assert await reading == self.sent.get(seq, b""), seq


@given(STEPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@on_uvloop
async def test_every_reader_gets_exactly_what_was_sent(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    async with place(tmp_path_factory.getbasetemp(), segments=1000) as node:
        assert await node.ask("POST", "ch") == 200
        model = Model(node)
        for step, value in steps:
            await model.do(step, value)
        await model.check()


class Film:
    """A camera and viewers who come after so many frames, each in a task of its own."""

    def __init__(self, url: str, token: str, seed: int) -> None:
        self._url, self._token, self._chance = url, token, random.Random(seed)
        self.frames = 0
        self.sent: dict[int, bytes] = {}
        self.seen: dict[int, dict[int, bytes]] = {}  # by viewer, what it has
        self.skipped = 0

    async def watch(self, number: int, after: int) -> None:
        """Come after that many frames and stay to the end."""
        await wait_until_async(lambda: self.frames > after, within=120)
        async with Subscriber(self._url, "video", start=-2, token=self._token) as viewer:
            seen = self.seen[number] = {}
            while (segment := await viewer.next()) is not None:
                seen[segment.seq] = await segment.read()
            self.skipped += viewer.skipped

    async def shoot(self, camera: Publisher, size: int, frames: int, pace: Callable[[], Awaitable[object]]) -> None:
        """One group of pictures."""
        body = b""
        async with camera.segment() as segment:
            for _ in range(frames):
                frame = self._chance.randbytes(size)
                await segment.write(frame)
                body += frame
                self.frames += 1
                await pace()
        self.sent[segment.seq] = body

    async def run(
        self, groups: int, size: int, frames: int, viewers: int, pace: Callable[[], Awaitable[object]]
    ) -> None:
        async with Publisher(self._url, "video", token=self._token) as camera, asyncio.TaskGroup() as group:
            for number in range(viewers):
                group.create_task(self.watch(number, self._chance.randrange(int(groups * frames * 0.8))))
            for _ in range(groups):
                await self.shoot(camera, size, frames, pace)
            await camera.close()

    def caught_up(self) -> bool:
        """Nobody who watches is more than two groups behind."""
        return all(max(seen, default=len(self.sent)) >= len(self.sent) - 3 for seen in self.seen.values())

    def check(self, viewers: int) -> None:
        """Everybody has everything from where it came in, byte for byte."""
        assert (len(self.seen), self.skipped) == (viewers, 0)
        for seen in self.seen.values():
            assert list(seen) == list(range(min(seen), len(self.sent)))
            assert all(self.sent[seq] == body for seq, body in seen.items())


async def test_a_short_film_for_ten(tmp_path: Path) -> None:
    """As fast as its viewers can follow: what every test run can afford."""
    with start_server(tmp_path / "data") as server:
        film = Film(server.url + "/trickle", server.admin_token, seed=1)
        await film.run(20, 2_500, 10, viewers=10, pace=lambda: wait_until_async(film.caught_up))
        film.check(10)


@pytest.mark.long
async def test_a_film_of_4_mbit_for_fifty_who_join_at_random(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        film = Film(server.url + "/trickle", server.admin_token, seed=2)
        # A camera's own time: 25 frames of 20,000 bytes a second, groups of two seconds.
        await film.run(15, 20_000, 50, viewers=50, pace=lambda: asyncio.sleep(1 / 25))
        film.check(50)
