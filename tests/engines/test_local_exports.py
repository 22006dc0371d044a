"""Exports over workers: one that is left is closed, whoever leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from penstock.core.export import ExportRange, Selection
from penstock.engines.local.contracts import PAGE
from penstock.engines.local.served_worker import ServedWorker
from penstock.engines.local.worker_export import WorkerExport
from penstock.testing import TooLate, wait_until_async
from penstock.values import Batch, Draft
from penstock.wire.table_columns import NAMES
from tests.engines.test_local_workers import Machine, Peer, started


async def close_at_once(self: WorkerExport, wanted: ExportRange) -> AsyncIterator[bytes]:
    """Sabotage: does not wait for the piece that is being made."""
    await self._link.call("export_open", None, 1, wanted)
    try:
        while (piece := await self._link.call("export_next", bytes | None, 1)) is not None:
            yield piece
    finally:
        self._link.call("export_close", None, 1)


@pytest.mark.parametrize("sabotage", [None, close_at_once])
async def test_an_export_whose_reader_leaves_is_closed_without_a_complaint(
    tmp_path, sabotage, monkeypatch, caplog
) -> None:
    async with started(tmp_path, durable=True) as machine:
        worker = await machine.worker("a")
        last = (await worker.log.append(Batch(tuple(Draft("/s", b"x") for _ in range(1_000))))).last.id
        if sabotage:
            monkeypatch.setattr(WorkerExport, "stream", sabotage)
        stream = worker.export.stream(ExportRange(0, last, NAMES, Selection()))
        link = machine.log.link_of("a")
        reading = asyncio.create_task(anext(stream))
        await wait_until_async(lambda: bool(link._running[PAGE]))
        reading.cancel()
        await asyncio.wait([reading])
        await stream.aclose()
        await wait_until_async(lambda: not link._exports)
        await worker.registry.get("x")

        assert ("call.failed" in caplog.text) == bool(sabotage)


async def kill_in_the_middle(machine: Machine, *, waiting: bool) -> ServedWorker:
    """Have a worker killed that reads an export: while it waits for a piece, or when it has one; its link."""
    innocent = await machine.worker("innocent")
    last = (await innocent.log.append(Batch(tuple(Draft("/s", bytes(8_000)) for _ in range(500))))).last.id
    peer = await Peer.join(machine, "killed")
    link = machine.log.link_of("killed")
    peer.call(2, "export_open", (1, ExportRange(0, last, NAMES, Selection())))
    await wait_until_async(lambda: bool(link._exports))
    peer.call(3, "export_next", (1,))
    await wait_until_async(lambda: bool(link._running[PAGE]))
    if not waiting:
        await wait_until_async(lambda: not link._running[PAGE])
    assert machine.log.engine.export._streams == 1
    peer.leave()
    await wait_until_async(lambda: machine.log.link_of("killed") is None)
    return link


@pytest.mark.parametrize("waiting", [True, False])
async def test_an_export_ends_with_the_worker_that_reads_it(tmp_path: Path, waiting: bool, caplog) -> None:
    async with started(tmp_path, durable=True) as machine:
        # Whatever still refers to the link does not keep its export open
        link = await kill_in_the_middle(machine, waiting=waiting)
        await wait_until_async(lambda: machine.log.engine.export._streams == 0)
        assert not link._exports
    assert "failed" not in caplog.text


async def leave_open(self: ServedWorker, calls: Sequence[asyncio.Task[None]]) -> None:
    """Sabotage: exports of a worker that is gone are closed when nothing refers to it any more."""


async def test_the_same_check_finds_exports_that_are_left_open(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ServedWorker, "_close_exports", leave_open)
    async with started(tmp_path, durable=True) as machine:
        link = await kill_in_the_middle(machine, waiting=False)
        with pytest.raises(TooLate):
            await wait_until_async(lambda: machine.log.engine.export._streams == 0, within=0.3)
        await link.export_close(1)
