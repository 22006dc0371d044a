"""Clients that are not ours: curl, http.client, and aiohttp in the ways of the Python clients there are."""

from __future__ import annotations

import asyncio
import http.client
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from penstock.testing import RunningServer, require_program, start_server, wait_until, wait_until_async
from tests.api.client import ask
from tests.doors.trickle_client import delete, get, made, new_channel, path, post, readers

GET_BODY = b"\x00\x01binary\xff" * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("clients") / "data"
    with start_server(data, trickle_autocreate=True, trickle_open=True) as running:
        yield running


def test_curl_publishes_and_reads(server: RunningServer) -> None:
    curl, channel = require_program("curl"), made(server)
    url = server.url + path(channel, 0)
    reader = subprocess.Popen([curl, "-sN", "--max-time", "20", url], stdout=subprocess.PIPE)
    try:
        wait_until(lambda: readers(server, channel) == 1)
        sent = subprocess.run(
            [curl, "-s", "-i", "--max-time", "20", "-X", "POST", "-T", "-", url],
            input=GET_BODY,
            capture_output=True,
            check=True,
        )
        assert b"Lp-Trickle-Seq: 0" in sent.stdout
        assert reader.communicate(timeout=60)[0] == GET_BODY
    finally:
        reader.kill()
        reader.wait()
    newest = [curl, "-s", "--max-time", "20", server.url + path(channel, -2)]
    assert subprocess.run(newest, capture_output=True, check=True).stdout == GET_BODY


def test_http_client_publishes_in_chunks_and_reads_on_one_connection(server: RunningServer) -> None:
    channel = made(server)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for seq in range(3):
        connection.request("POST", path(channel, seq), body=iter([b"one-", b"two-", b"%d" % seq]), encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, answer.read(), answer.headers["Lp-Trickle-Seq"]) == (200, b"", str(seq))
    for seq in range(3):
        connection.request("GET", path(channel, seq))
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"one-two-%d" % seq)
    connection.close()


def connections(server: RunningServer) -> float:
    """How many the server has, with the one that asks."""
    lines = ask(server, "GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("penstock_connections "))


class Feed:
    """A body that comes when it is told to, as aiohttp wants it."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece


async def test_aiohttp_in_the_ways_of_pytrickle(server: RunningServer) -> None:
    """`Connection: close`, no create, begins at 0; the subscriber at -2, then seq + 1 until 404."""
    channel, got = new_channel(), []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:

        async def publish(seq: int, feed: Feed) -> int:
            headers = {"Connection": "close", "Content-Type": "video/MP2T"}
            async with session.post(server.url + path(channel, seq), headers=headers, data=feed) as answer:
                return answer.status

        async def subscribe() -> None:
            asked = -2
            while True:
                headers = {"Connection": "close"}
                async with session.get(server.url + path(channel, asked), headers=headers) as answer:
                    if answer.status != 200 or answer.headers.get("Lp-Trickle-Closed"):
                        got.append(f"end {answer.status}")
                        return
                    asked = int(answer.headers["Lp-Trickle-Seq"]) + 1
                    got.append(await answer.content.read())

        feeds = [Feed() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            posts = [group.create_task(publish(0, feeds[0]))]
            await feeds[0].pieces.put(b"first")
            await wait_until_async(lambda: get(server, channel, "next").body == b"1")
            reading = group.create_task(subscribe())
            for seq, feed in enumerate(feeds):
                if seq:
                    posts.append(group.create_task(publish(seq, feed)))
                    await feed.pieces.put(b"piece-")
                    await feed.pieces.put(b"%d" % seq)
                await feed.pieces.put(None)
                assert await posts[seq] == 200
                await wait_until_async(lambda seq=seq: len(got) > seq)  # type: ignore[misc]
            await wait_until_async(lambda: readers(server, channel) == 1)
            assert delete(server, channel).status == 200
            await reading
    assert got == [b"first", b"piece-1", b"piece-2", "end 200"]


async def test_aiohttp_that_connects_ahead_and_is_silent_loses_nothing(tmp_path: Path) -> None:
    """Since 3.12 it holds the head back until there is a first byte: all the server sees is a connection."""
    with start_server(tmp_path / "data", trickle_autocreate=True, server_head_timeout=0.5) as server:
        channel, feed = new_channel(), Feed()
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            opened = connections(server)
            posting = asyncio.create_task(session.post(server.url + path(channel, 0), data=feed).__aenter__())
            await wait_until_async(lambda: connections(server) > opened)
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
                slow.sendall(b"GET")  # begins a head after the other connected, and does not end it
                assert await asyncio.to_thread(slow.recv, 12) == b"HTTP/1.1 408"
            for piece in (b"first, ", b"second", None):
                await feed.pieces.put(piece)
            answer = await posting
            assert answer.status == 200
            answer.release()
        assert get(server, channel, 0).body == b"first, second"


@pytest.mark.parametrize("stop", ["gracefully", "with kill -9"])
async def test_a_publisher_that_counts_on_is_taken_after_a_restart(tmp_path: Path, stop: str) -> None:
    with start_server(tmp_path / "data", trickle_autocreate=True) as server:
        channel = new_channel()
        for seq in range(3):
            assert post(server, channel, seq, b"%d" % seq).status == 200
        if stop == "with kill -9":
            server.kill()
        server.restart()

        for seq in (3, 4, 5):
            assert post(server, channel, seq, b"%d" % seq).status == 200
        assert [get(server, channel, seq).body for seq in (3, 4, 5, -2)] == [b"3", b"4", b"5", b"5"]


async def test_aiohttp_jumps_to_the_live_edge_after_470(server: RunningServer) -> None:
    channel = made(server)
    for seq in range(8):
        post(server, channel, seq, b"%d" % seq)
    async with aiohttp.ClientSession() as session:
        async with session.get(server.url + path(channel, 0)) as answer:
            assert answer.status == 470
            latest = int(answer.headers["Lp-Trickle-Latest"])
        waiting = asyncio.create_task(session.get(server.url + path(channel, latest)).__aenter__())
        await wait_until_async(lambda: readers(server, channel) == 1)
        post(server, channel, latest, b"live")
        answer = await waiting
        assert await answer.read() == b"live"
        answer.release()


def test_one_connection_makes_a_channel_by_its_first_segment_and_reads_it(server: RunningServer) -> None:
    channel = new_channel()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for method, body in (("POST", b"first"), ("GET", None), ("GET", None)):
        connection.request(method, path(channel, 0), body=body)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"" if body else b"first")
    connection.close()
