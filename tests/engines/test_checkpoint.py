"""Checkpoints beside the writer: the write-ahead log stays small, commits do not wait for it, and the end is clean."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from penstock.engines.sqlite import checkpoint, connection
from penstock.engines.sqlite.checkpoint import Checkpointer
from penstock.engines.sqlite.engine import SqliteOptions, open_sqlite
from penstock.testing import wait_until
from penstock.values import Batch, Draft

PAGES = 32
OPTIONS = SqliteOptions(checkpoint_pages=PAGES)
BOUND = 4 * connection.LAST_RESORT * PAGES * checkpoint.PAGE_BYTES


async def grow(directory: Path) -> int:
    """The size of the write-ahead log after many times as many pages as it should hold."""
    async with open_sqlite(directory, node="n", options=OPTIONS) as engine:
        for _ in range(40 * PAGES):
            await engine.log.append(Batch((Draft("/a", b"x" * 2000),)))
        return (directory / "penstock.db-wal").stat().st_size


async def test_the_write_ahead_log_begins_anew_under_load(tmp_path: Path) -> None:
    assert await grow(tmp_path) < BOUND


async def test_without_checkpoints_it_would_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotage: nobody moves anything."""
    monkeypatch.setattr(Checkpointer, "committed", lambda *_: None)
    monkeypatch.setattr(connection, "LAST_RESORT", 10**6)

    assert await grow(tmp_path) >= BOUND


async def test_the_writer_goes_on_while_pages_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an end that comes in the middle waits for it, no longer."""
    moving, move = asyncio.Event(), checkpoint._move
    loop = asyncio.get_running_loop()
    engine = open_sqlite(tmp_path, node="n", options=OPTIONS)

    def move_until_the_end(connection: sqlite3.Connection) -> bool:
        loop.call_soon_threadsafe(moving.set)
        wait_until(lambda: engine._writer._checkpointer._ending, within=50)
        return move(connection)

    monkeypatch.setattr(checkpoint, "_move", move_until_the_end)
    async with asyncio.timeout(60):
        async with engine:
            while not moving.is_set():
                await engine.log.append(Batch((Draft("/a", b"x"),)))
            for _ in range(3 * PAGES):
                last = await engine.log.append(Batch((Draft("/a", b"x"),)))

    async with open_sqlite(tmp_path, node="n") as reopened:
        head = await reopened.log.head("/a")
        assert head is not None
        assert head.last_id == last.last.id


async def test_a_checkpoint_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def execute(self, statement: str) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("database or disk is full")

    move = checkpoint._move
    monkeypatch.setattr(checkpoint, "_move", lambda _: move(Full()))  # type: ignore[arg-type]
    async with open_sqlite(tmp_path, node="n", options=OPTIONS) as engine:
        for _ in range(3 * PAGES):
            last = await engine.log.append(Batch((Draft("/a", b"x"),)))

        page = await engine.log.read_index("/a", 0)
        assert page.entries[-1].id == last.last.id
