"""The Python client: one set of promises for the network and for channels in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.client.http import ServerUnreachable
from penstock.client.trickle import FAIL, OLDEST, ChannelMissing, Publisher, SegmentMissing, Subscriber, TrickleError
from penstock.client.trickle_local import LocalChannels
from penstock.testing import RunningServer, start_server, wait_until_async
from tests.doors.trickle_client import Post, create, get, head_of, new_channel, post, readers, shown

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_server(tmp_path_factory.mktemp("client") / "data", trickle_preconnect=1) as running:
        yield running


class Place:
    """Where publishers and subscribers come from."""

    def __init__(self, server: RunningServer | None) -> None:
        self._server = server
        self._local = LocalChannels()

    def readers(self, name: str) -> int:
        if self._server is None:
            return sum(len(segment.readers) for segment in self._local.get(name))
        return readers(self._server, name)

    def publisher(self, name: str, **options: Any) -> Any:
        if self._server is None:
            return self._local.publisher(name, **options)
        return Publisher(self._server.url + "/trickle", name, token=self._server.admin_token, **options)

    def subscriber(self, name: str, **options: Any) -> Any:
        if self._server is None:
            return self._local.subscriber(name, **options)
        return Subscriber(self._server.url + "/trickle", name, token=self._server.admin_token, **options)


@pytest.fixture(params=["network", "memory"])
def place(request: pytest.FixtureRequest, server: RunningServer) -> Place:
    return Place(server if request.param == "network" else None)


async def bodies(subscriber: Any, count: int = 1000) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20), subscriber:
        while len(found) < count and (segment := await subscriber.next()) is not None:
            found.append(await segment.read())
    return found


async def test_what_is_published_is_read_in_order_to_the_end(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher, asyncio.TaskGroup() as group:
        assert await publisher.send(b"zero") == 0
        reading = group.create_task(bodies(place.subscriber(name, start=0)))
        for body in (b"one", b"", b"three"):
            await publisher.send(body)
        await publisher.close()
    assert reading.result()[:4] == [b"zero", b"one", b"", b"three"]
    assert len(reading.result()) == 4


async def test_a_channel_that_is_closed_is_read_to_its_end(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher:
        for body in (b"zero", b"", b"two"):
            await publisher.send(body)
        async with place.subscriber(name, start=0) as subscriber:
            first = await subscriber.next()
            await publisher.close()
            assert [await first.read(), *await bodies(subscriber)] == [b"zero", b"", b"two"]


async def test_pieces_come_while_the_segment_is_being_made(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher, publisher.segment() as segment:
        await segment.write(b"one-")
        async with place.subscriber(name, start=-2) as subscriber:
            reader = await subscriber.next()
            assert (reader.seq, reader.latest) == (0, 1)
            pieces = aiter(reader)
            assert await anext(pieces) == b"one-"
            await segment.write(b"two")
            assert await anext(pieces) == b"two"


async def test_the_positions_of_a_subscriber(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher:
        for body in (b"zeroth", b"first"):
            await publisher.send(body)
        edge = place.subscriber(name, start=-1)
        async with asyncio.TaskGroup() as group:
            next_one = group.create_task(bodies(edge, 1))
            await wait_until_async(lambda: place.readers(name) == 1)
            assert await bodies(place.subscriber(name, start=-2), 1) == [b"first"]
            assert await bodies(place.subscriber(name, start=0), 2) == [b"zeroth", b"first"]
            await publisher.send(b"second")
        assert next_one.result() == [b"second"]


async def test_a_subscriber_behind_the_window_skips_or_replays_or_fails(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher:
        for number in range(8):
            await publisher.send(b"%d" % number)
        oldest = place.subscriber(name, start=0, missing=OLDEST)
        assert await bodies(oldest, 5) == [b"3", b"4", b"5", b"6", b"7"]
        assert oldest.skipped == 3
        live = place.subscriber(name, start=0)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(bodies(live, 1))
            await wait_until_async(lambda: live.skipped == 8)
            await publisher.send(b"8")
        assert reading.result() == [b"8"]
        with pytest.raises(SegmentMissing) as missing:
            await bodies(place.subscriber(name, start=0, missing=FAIL), 1)
        assert (missing.value.latest, missing.value.oldest) == (9, 4)


async def test_there_must_be_a_channel(place: Place) -> None:
    with pytest.raises(ChannelMissing):
        await bodies(place.subscriber(new_channel()))
    async with place.publisher(new_channel(), create=False) as publisher:
        with pytest.raises(ChannelMissing):
            await publisher.send(b"x")


async def test_an_error_of_the_program_drops_the_segment(place: Place) -> None:
    name = new_channel()
    async with place.publisher(name) as publisher:
        with suppress(ZeroDivisionError):
            async with publisher.segment() as segment:
                await segment.write(b"half")
                raise ZeroDivisionError
        assert await publisher.send(b"next") == 1
        assert await bodies(place.subscriber(name, start=0), 2) == [b"half", b"next"]


# ── what only a network can do ─────────────────────────────────────────────────────────────────


async def test_a_publisher_connects_ahead_and_survives_that_it_was_too_early(server: RunningServer) -> None:
    name = new_channel()
    async with Place(server).publisher(name) as publisher:
        await publisher.send(b"zero")
        assert publisher._next is not None
        await wait_until_async(lambda: publisher._next.answered)  # 408, after a second
        await publisher.send(b"one")
    assert get(server, name, 1).body == b"one"


async def test_a_publisher_that_starts_again_goes_on_and_frees_readers(server: RunningServer) -> None:
    name = new_channel()
    place = Place(server)
    crashed = place.publisher(name)
    await crashed.__aenter__()
    context = crashed.segment()
    await (await context.__aenter__()).write(b"half")
    await wait_until_async(lambda: head_of(server, name) == 1)
    reading = asyncio.create_task(bodies(place.subscriber(name, start=0), 2))
    await wait_until_async(lambda: readers(server, name) == 2)  # of the segment, and ahead of it

    async with place.publisher(name) as publisher:
        assert await publisher.send(b"again") == 1

    assert await reading == [b"half", b"again"]
    with pytest.raises(TrickleError, match="409"):
        await context.__aexit__(None, None, None)
    await crashed.__aexit__(None, None, None)


async def test_recorded_channels_are_read_from_the_start(server: RunningServer) -> None:
    name = new_channel()
    place = Place(server)
    async with place.publisher(name, record=True, content_type="text/plain") as publisher:
        for number in range(9):
            await publisher.send(b"%d" % number)
        await publisher.close()

    assert await bodies(place.subscriber(name, start=0)) == [b"%d" % number for number in range(9)]


class CuttingProxy:
    """Cuts its connections, one after the other, after so many bytes towards the server, or from it if negative."""

    def __init__(self, server: RunningServer, limits: tuple[int, ...]) -> None:
        self._server, self._limits = server, list(limits)
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = self._limits.pop(0) if self._limits else 0
        there = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._writers += [writer, there[1]]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(reader, there[1], limit if limit > 0 else 1 << 60))
            group.create_task(self._pump(there[0], writer, -limit if limit < 0 else 1 << 60))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int) -> None:
        with suppress(OSError):
            while limit and (data := await reader.read(min(limit, 4096))):
                limit -= len(data)
                writer.write(data)
                await writer.drain()
        place = self._writers.index(writer) // 2 * 2
        for one in self._writers[place : place + 2]:
            one.transport.abort()

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def cutting(server: RunningServer, *limits: int) -> AsyncIterator[str]:
    proxy = CuttingProxy(server, limits)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/trickle"
        await proxy.close()


async def test_a_publisher_sends_again_and_every_byte_arrives_once(server: RunningServer) -> None:
    name, body = new_channel(), bytes(range(256)) * 200
    async with Place(server).publisher(name):
        pass  # the channel is there
    # The question for the next seq goes over a connection of its own, which is not cut.
    async with (
        cutting(server, 100_000, 10_000) as url,
        Publisher(url, name, token=server.admin_token, create=False) as it,
    ):
        assert await it.send(body) == 0
    assert get(server, name, 0).body == body
    assert head_of(server, name) == 1


async def test_a_publisher_waits_for_a_server_that_is_away_between_two_segments(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        url, token = f"{server.url}/trickle", server.admin_token
        async with Publisher(url, "film", token=token, record=True, retries=100) as it:
            await it.send(b"one")
            server.kill()
            ahead = it._next
            assert ahead
            await wait_until_async(lambda: ahead.answered)  # it knows that the server is gone
            sending = asyncio.create_task(it.send(b"two"))
            await asyncio.to_thread(server.restart)
            assert await sending == 1
        assert (get(server, "film", 0).body, get(server, "film", 1).body) == (b"one", b"two")


async def test_a_subscriber_in_the_middle_of_a_segment_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server:
        assert create(server, "film", record="true").status == 200
        with Post(server, "film", 0, b"half, "):
            subscriber = Subscriber(f"{server.url}/trickle", "film", start=0, token=server.admin_token, retries=100)
            async with subscriber:
                segment = await subscriber.next()
                assert segment
                pieces = aiter(segment)
                assert await anext(pieces) == b"half, "
                server.kill()
                rest = asyncio.create_task(anext(pieces))
                await asyncio.to_thread(server.restart)  # which takes longer than the first pause
                post(server, "film", 0, b"half, and the rest")
                assert await rest == b"and the rest"


async def test_a_subscriber_whose_connection_breaks_gets_every_byte_once(server: RunningServer) -> None:
    name, body = new_channel(), bytes(range(256)) * 2000
    async with Place(server).publisher(name) as publisher:
        await publisher.send(body)
        async with cutting(server, -30_000, -100_000) as url:
            assert await bodies(Subscriber(url, name, start=0, token=server.admin_token), 1) == [body]


async def test_without_a_server_it_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ServerUnreachable):
        await bodies(Subscriber(f"http://127.0.0.1:{port}/trickle", "x", retries=0))


async def test_a_server_that_answers_with_interim_answers_without_end_is_given_up() -> None:
    sent = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(OSError):
            while sent < 1 << 26:
                writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
                await writer.drain()
                sent += 27_000
        writer.close()

    async with await asyncio.start_server(peer, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/trickle"
        with pytest.raises(ServerUnreachable, match="more than 32,768 bytes"):
            await bodies(Subscriber(url, "x", retries=0))
    assert sent < 1 << 26


async def test_a_fast_publisher_is_held_back_by_the_server(server: RunningServer) -> None:
    """What is written waits for the socket: memory of the client does not grow with the segment."""
    name = new_channel()
    async with Place(server).publisher(name) as publisher, publisher.segment() as segment:
        for _ in range(40):
            await segment.write(bytes(100_000))
        assert shown(server, name)["bytes"] > 0
