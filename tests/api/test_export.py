"""The export of an engine's rows: exact, complete, and bounded."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core import arrow
from penstock.core.clock import ManualClock, WallClock
from penstock.core.export import ExportRange, Selection
from penstock.core.log import Log
from penstock.engines.local import LogServer, open_worker_engine
from penstock.engines.sqlite import export as sqlite_export
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.export import INLET_BYTES, SqliteExport
from penstock.errors import EngineGone, Trimmed
from penstock.limits import BATCH_ENTRIES
from penstock.settings import LogSettings
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft, Entry, Kind
from penstock.wire.table_columns import NAMES
from tests.api.export_site import collect, engine_with_export, read_export

SOURCE = str(Path(arrow.__file__).parents[2])
Row = dict[str, object]
START_SECONDS = 30
"""For the export process to come up: half a second, but many times that on a machine with other work."""


def expected(entry: Entry) -> Row:
    """A row as the contract describes it, written down a second time."""
    gone = entry.kind in (Kind.EXPIRED, Kind.ERASED)
    return {
        "id": entry.id,
        "stream": entry.stream,
        "index": entry.index,
        "chunk": entry.chunk,
        "offset": entry.offset,
        "size": entry.size,
        "kind": entry.kind.name.lower(),
        "type": entry.type or None,
        "time": datetime.fromtimestamp(entry.published_ms / 1000, UTC),
        "expires_at": None if entry.expires_ms is None else datetime.fromtimestamp(entry.expires_ms / 1000, UTC),
        "attributes": entry.attributes or None,
        "body": None if gone else entry.body,
        "schema_version": 1,
    }


async def fill(log: Log, clock: ManualClock, seed: int, batches: int = 60) -> None:
    """Random entries of every kind; some have expired, are about to, or were erased."""
    chance = random.Random(seed)
    for _ in range(batches):
        drafts = tuple(_draft(chance, clock) for _ in range(chance.randint(1, 40)))
        await log.append(Batch(drafts))
        clock.advance(chance.choice([0, 0.001, 2, -1]))
    ids = chance.sample(range(1, log.followed), 40)
    await log.erase(ids[:20])
    clock.advance(60)
    await log.expire(limit=10)
    await log.append(Batch((Draft("/_ledger", b"{}"), Draft("/last", b""))))


def _draft(chance: random.Random, clock: ManualClock) -> Draft:
    size = chance.choice([0, 1, 10, 200, 200, 5000, 70_000])
    return Draft(
        chance.choice(["/a", "/b/c", "/users/7", "/users/8", "/_sub/x", f"/many/{chance.randint(1, 50)}"]),
        chance.randbytes(size) if chance.random() < 0.5 else b"x" * size,
        type=chance.choice(["", "", "order"]),
        attributes=chance.choice(["", "", '{"a":"ü"}']),
        expires_ms=clock.now_ms() + chance.randint(1, 100_000) if chance.random() < 0.1 else None,
    )


engines = pytest.mark.parametrize("kind", ["sqlite", "memory"])


@engines
@pytest.mark.parametrize("seed", [1, 2])
async def test_an_export_equals_the_log_row_by_row(tmp_path: Path, kind: str, seed: int) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, clock):
        await fill(engine.log, clock, seed)
        end = engine.log.followed
        table, upto = read_export(await collect(export, ExportRange(0, end)))

        entries = [await engine.log.entry(id) for id in range(1, end + 1)]
        assert table.to_pylist() == [expected(entry) for entry in entries if entry is not None]
        assert upto == end
        kinds = set(table.column("kind").to_pylist())
        assert kinds == {"data", "meta", "expired", "erased"}


@engines
async def test_the_schema_is_exactly_the_promised_one(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, _):
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        table, _ = read_export(await collect(export, ExportRange(0, engine.log.followed)))

    time = pa.timestamp("us", tz="UTC")
    assert [(field.name, field.type, field.nullable, field.metadata) for field in table.schema] == [
        (name, kind, True, None)
        for name, kind in {
            "id": pa.int64(), "stream": pa.string(), "index": pa.int64(), "chunk": pa.int64(), "offset": pa.int64(),
            "size": pa.int64(), "kind": pa.string(), "type": pa.string(), "time": time, "expires_at": time,
            "attributes": pa.string(), "body": pa.binary(), "schema_version": pa.int32(),
        }.items()
    ]  # fmt: skip
    assert table.schema.metadata is None


@engines
async def test_an_export_goes_on_with_a_stream_that_was_begun(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, _), AsyncExitStack() as stack:
        await engine.log.append(Batch(tuple(Draft("/a", b"%d" % number) for number in range(8))))
        if kind == "sqlite":  # and as a worker has it
            await stack.enter_async_context(LogServer(engine, tmp_path / "log.sock"))
            worker = open_worker_engine(tmp_path / "log.sock", node="w", settings=LogSettings())
            export = (await stack.enter_async_context(worker)).export
        end = engine.log.followed
        first = [piece async for piece in export.stream(ExportRange(0, 3))][:-1]  # without its trailer
        rest = await collect(export, ExportRange(3, end, rows_before=3))

        assert read_export(b"".join(first) + rest) == read_export(await collect(export, ExportRange(0, end)))


@engines
async def test_an_empty_range_is_a_schema_and_a_trailer(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, _):
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        end = engine.log.followed
        table, upto = read_export(await collect(export, ExportRange(end, end)))

    assert (table.num_rows, upto) == (0, end)
    assert table.schema.equals(arrow.schema())


@engines
async def test_columns_and_streams_select(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, clock):
        await fill(engine.log, clock, 3, batches=10)
        end = engine.log.followed
        entries = [await engine.log.entry(id) for id in range(1, end + 1)]
        for columns in [("id",), ("body",), ("index", "attributes"), ("kind", "expires_at"), NAMES]:
            for patterns in [None, (">",), ("/a", "/many/*"), ("/nobody",)]:
                selection = Selection(patterns, ("/users/7",) if patterns == (">",) else None)
                table, _ = read_export(await collect(export, ExportRange(2, end, columns, selection)))
                assert table.to_pylist() == [
                    {name: expected(entry)[name] for name in columns}
                    for entry in entries
                    if entry is not None and entry.id > 2 and selection.wants(entry.stream)
                ]


async def test_bytes_of_an_expired_body_do_not_leave_the_server(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, clock):
        secret = b"nobody may see this any more"
        await engine.log.append(Batch((Draft("/a", secret, type="t", expires_ms=clock.now_ms() + 1000),)))
        wanted = ExportRange(0, engine.log.followed)
        assert secret in await collect(export, wanted)
        clock.advance(1)
        assert secret not in await collect(export, wanted)


async def test_large_bodies_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        sizes = [10] * 1500 + [900_000] * 30 + [10] * 1500 + [4096, 4097] * 20
        for size in sizes:
            if size > 4097:
                await engine.log.append(Batch((Draft("/large", os.urandom(size)),)))
            else:
                engine.log.append(Batch((Draft("/small", os.urandom(size)),)))
        await engine.log.append(Batch((Draft("/end", b""),)))
        end = engine.log.followed
        table, _ = read_export(await collect(export, ExportRange(0, end)))  # looks at the size of each batch

        assert sorted(len(body) for body in table.column("body").to_pylist() if len(body) > 4000) == sorted(
            size for size in sizes if size > 4000
        )
        assert table.column("id").to_pylist() == list(range(1, end + 1))


async def test_what_is_trimmed_while_it_is_read_is_no_shorter_export(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 100) for _ in range(BATCH_ENTRIES))))
        stream = export.stream(ExportRange(0, engine.log.followed))
        await anext(stream)
        await engine.log.trim(10_000)
        with pytest.raises(Trimmed):
            _ = [piece async for piece in stream]


async def test_an_export_process_that_dies_breaks_its_exports_and_no_other(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 1000) for _ in range(BATCH_ENTRIES))))
        wanted = ExportRange(0, engine.log.followed)
        stream = export.stream(wanted)
        await anext(stream)
        os.kill(export._process.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(EngineGone):
            _ = [piece async for piece in stream]
        table, _ = read_export(await collect(export, wanted))
        assert table.num_rows == wanted.upto


class WaitsForItsProcess(SqliteExport):
    """In the loop."""

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


@pytest.mark.parametrize(("kind", "goes_on"), [(SqliteExport, True), (WaitsForItsProcess, False)])
async def test_the_loop_does_not_wait_for_an_export_process_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[SqliteExport], goes_on: bool
) -> None:
    monkeypatch.setattr(sqlite_export, "END_SECONDS", 2.0)
    async with open_sqlite(tmp_path, node="test") as engine:
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        export = kind(engine.path, engine.log, WallClock(), idle_seconds=0)
        stream = export.stream(ExportRange(0, engine.log.followed))
        await anext(stream)
        assert export._process is not None
        process = export._process.process
        process.send_signal(signal.SIGSTOP)
        await stream.aclose()  # nobody exports any more: it is to end, and is killed after some seconds

        await wait_until_async(lambda: export._process is None)
        assert (process.poll() is None) is goes_on
        await export.close()
        assert process.poll() == -signal.SIGKILL


async def test_the_next_process_outlives_what_the_last_one_has_broken(tmp_path: Path) -> None:
    # Given two exports whose process dies
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 1000) for _ in range(BATCH_ENTRIES))))
        wanted = ExportRange(0, engine.log.followed)
        first, second = export.stream(wanted), export.stream(wanted)
        for stream in (first, second):
            await anext(stream)
        os.kill(export._process.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(EngineGone):
            _ = [piece async for piece in first]
        # When one of them notices only after another export has begun
        third = export.stream(wanted)
        begin = await anext(third)
        with pytest.raises(EngineGone):
            _ = [piece async for piece in second]
        # Then that goes on
        table, _ = read_export(begin + b"".join([piece async for piece in third]))
        assert table.num_rows == wanted.upto


async def test_a_reader_that_waits_stops_the_export_process(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 4000) for _ in range(BATCH_ENTRIES))))
        inlet = await export._begin(ExportRange(0, engine.log.followed))  # type: ignore[attr-defined]
        await wait_until_async(lambda: inlet._paused, within=START_SECONDS)
        assert INLET_BYTES <= inlet._waiting_bytes < 2 * INLET_BYTES
        inlet.close()
        export._ended()  # type: ignore[attr-defined]


def libraries_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def test_the_export_process_loads_neither_pandas_nor_polars(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        await collect(export, ExportRange(0, engine.log.followed))
        loaded = libraries_of(export._process.process.pid)  # type: ignore[attr-defined]

    assert {name for name in ("pyarrow", "pandas", "polars") if name in loaded} == {"pyarrow"}
    assert find_spec("pandas"), "where it is not installed this would show nothing"


async def test_exports_beside_a_busy_writer_are_exact(tmp_path: Path) -> None:
    # Given a writer whose write-ahead log is moved into the file again and again
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):

        async def write() -> None:
            for _ in range(60):
                await engine.log.append(Batch(tuple(Draft("/a", b"x" * 1000) for _ in range(BATCH_ENTRIES))))

        await engine.log.append(Batch((Draft("/a", b"x"),)))
        writing = asyncio.create_task(write())
        # When everything is exported meanwhile, over and over
        exports = 0
        while not writing.done() or not exports:
            end = engine.log.followed
            table, _ = read_export(await collect(export, ExportRange(0, end, ("id", "size"))))
            # Then each export has every row up to its end
            assert table.column("id").to_pylist() == list(range(1, end + 1))
            exports += 1
        await writing


def test_the_server_never_loads_a_second_copy_of_sqlite(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from importlib.util import find_spec
from pathlib import Path
import penstock.node.node
import penstock.testing
from penstock.core.clock import WallClock
from penstock.core.export import ExportRange
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.export import SqliteExport
from penstock.values import Batch, Draft

async def main():
    async with open_sqlite(Path(sys.argv[1]), node="test") as engine:
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        export = SqliteExport(engine.path, engine.log, WallClock(), idle_seconds=0)
        pieces = [piece async for piece in export.stream(ExportRange(0, engine.log.followed))]
        process = export._process.process
        await penstock.testing.wait_until_async(lambda: process.poll() is not None)
        await export.close()
        print(len(b"".join(pieces)) > 500, process.returncode, {"pyarrow", "adbc_driver_sqlite"} & set(sys.modules))

asyncio.run(main())
"""
    command, environment = [sys.executable, "-c", program, str(tmp_path)], {**os.environ, "PYTHONPATH": SOURCE}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.stdout == "True 0 set()\n", result.stderr
