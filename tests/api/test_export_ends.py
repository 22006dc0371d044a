"""How exports end: complete, or broken off so that everybody notices; and what they cost meanwhile."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from penstock.core import arrow
from penstock.core.export import ExportRange
from penstock.errors import EngineGone
from penstock.limits import BATCH_ENTRIES
from penstock.values import Batch, Draft
from penstock.wire.table_columns import NAMES
from tests.api.export_site import ADMIN, CutOff, Scripted, Site, code, engine_with_export, publish, read_export, site


async def messages(tmp_path: Path) -> list[bytes]:
    """The messages of a complete export."""
    async with engine_with_export(tmp_path, "memory") as (engine, export, _):
        for _ in range(3):
            await engine.log.append(Batch(tuple(Draft("/a", b"x") for _ in range(BATCH_ENTRIES))))
        return [piece async for piece in export.stream(ExportRange(0, engine.log.followed))]


async def test_a_stream_cut_between_messages_is_noticed(tmp_path: Path) -> None:
    whole = await messages(tmp_path)
    assert read_export(b"".join(whole))[0].num_rows > 3 * BATCH_ENTRIES
    for end in range(len(whole)):
        cut = b"".join(whole[:end])
        with pytest.raises(CutOff):
            read_export(cut)
    # Arrow itself does not notice: this is what the trailer is for.
    assert pa.ipc.open_stream(b"".join(whole[:2])).read_all().num_rows == 1024


@pytest.mark.parametrize("honest", [True, False], ids=["aborts", "sabotage: ends early"])
async def test_a_failure_in_the_middle_cuts_the_connection(tmp_path: Path, honest: bool) -> None:
    whole = await messages(tmp_path)

    async def pieces() -> AsyncGenerator[bytes, None]:
        for piece in whole[:-1]:
            yield piece
        if honest:
            raise EngineGone("the disk is gone")

    async with site(tmp_path, export=Scripted(pieces)) as node:
        end = await publish(node)
        request = node.get("/v1/log/arrow", after=0, upto=end)
        if honest:
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                await request
        else:
            status, _, body = await request  # HTTP says that this is all, and so does Arrow
            assert status == 200
            with pytest.raises(CutOff):
                read_export(body)


async def test_a_failure_before_the_first_byte_is_a_proper_answer(tmp_path: Path) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        raise EngineGone("the disk is gone")
        yield b""

    async with site(tmp_path, export=Scripted(pieces)) as node:
        end = await publish(node)
        status, _, body = await node.get("/v1/log/arrow", after=0, upto=end)
        assert (status, code(body)) == (503, "engine_gone")


async def test_only_so_many_exports_run_at_once(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        begun.set()
        await go_on.wait()
        yield arrow.opening(NAMES)
        yield arrow.closing(NAMES, 0, 1)

    async with site(tmp_path, export=Scripted(pieces), limit=1) as node:
        end = await publish(node)
        first = asyncio.create_task(node.get("/v1/log/arrow", after=0, upto=end))
        await begun.wait()
        for path in ("/v1/log/arrow", "/v1/log/plan"):
            status, headers, body = await node.get(path, after=0, upto=end)
            assert (status, code(body), headers["retry-after"]) == (503, "busy", "1")
        go_on.set()
        assert (await first)[0] == 200
        assert (await node.get("/v1/log/plan", after=0, upto=end))[0] == 200


async def test_a_client_that_leaves_makes_room_for_the_next(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 65_536
        finally:
            closed.set()

    async with site(tmp_path, export=Scripted(pieces), limit=1) as node:
        end = await publish(node)
        reader, writer = await _open(node, end)
        await reader.readexactly(100_000)
        writer.transport.abort()
        await asyncio.wait_for(closed.wait(), 20)
        assert (await node.get("/v1/log/plan", after=0, upto=end))[0] == 200


async def _open(node: Site, end: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An export that the client reads as slowly as it likes: its own buffers are small."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", node.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=65_536)
    query = urlencode({"after": 0, "upto": end})
    writer.write(f"GET /v1/log/arrow?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode())
    return reader, writer


@pytest.mark.parametrize("high_water", [65_536, 1 << 30], ids=["bounded", "sabotage: no high-water mark"])
async def test_memory_is_bounded_when_the_reader_is_slow(tmp_path: Path, high_water: int) -> None:
    piece, total, made = b"x" * 65_536, 64 << 20, 0

    async def pieces() -> AsyncGenerator[bytes, None]:
        nonlocal made
        while made < total:
            made += len(piece)
            yield piece
            await asyncio.sleep(0)

    async with site(tmp_path, export=Scripted(pieces), write_high=high_water) as node:
        reader, writer = await _open(node, await publish(node))
        ahead = received = 0
        while received < total:
            for _ in range(30):
                await asyncio.sleep(0)  # the server may run ahead as far as it likes
            ahead = max(ahead, made - received)
            received += len(await reader.read(65_536))
        writer.transport.abort()
        # The rest of what it is ahead lies in the kernel's buffers.
        assert (ahead < 16 << 20) == (high_water == 65_536)
