"""The export, from the engine's file to a client's socket: exact, complete or broken off, and bounded."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import arrow
from penstock.core.clock import ManualClock
from penstock.core.export import BATCH_BYTES, COLUMNS, Block, Export, LogExport, Range, Selection
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.log import Log
from penstock.core.members import Alone
from penstock.errors import EngineGone, Trimmed
from penstock.limits import BATCH_ENTRIES
from penstock.server.auth import Caller, Gate, open_keys
from penstock.server.caps import Caps
from penstock.server.context import Context
from penstock.server.listener import Listener
from penstock.server.routing import Route, Router
from penstock.server.settings import ConnectionSettings
from penstock.server.v1.export import Exporter, _selection
from penstock.server.wheel import Wheel
from penstock.storage.memory import MemoryEngine
from penstock.storage.sqlite import open_sqlite
from penstock.storage.sqlite.export import INLET_BYTES, SqliteExport
from penstock.testing import wait_until_async
from penstock.values import Batch, Draft, Entry, Kind

ADMIN = "a-token-for-tests"
SOURCE = str(Path(arrow.__file__).parents[2])
Row = dict[str, object]


# ── what a careful reader does ─────────────────────────────────────────────────────────────────


class CutOff(Exception):
    """The stream ended without saying that it was complete."""


def read_export(body: bytes) -> tuple[pa.Table, int]:
    """The rows of a complete export, and the id up to which it looked; raises `CutOff` if it is not complete."""
    try:
        return _read_export(body)
    except (pa.ArrowInvalid, OSError) as error:
        raise CutOff from error


def _read_export(body: bytes) -> tuple[pa.Table, int]:
    reader = pa.ipc.open_stream(body)
    batches: list[pa.RecordBatch] = []
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            raise CutOff from None
        if metadata is not None:
            break
        assert batch.nbytes <= BATCH_BYTES
        batches.append(batch)
    table = pa.Table.from_batches(batches, reader.schema)
    if table.num_rows != int(metadata[b"rows"]):
        raise CutOff
    return table, int(metadata[b"upto"])


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


async def collect(export: Export, wanted: Range) -> bytes:
    return b"".join([piece async for piece in export.stream(wanted)])


# ── logs to export ─────────────────────────────────────────────────────────────────────────────


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


@asynccontextmanager
async def engine_with_export(tmp_path: Path, kind: str) -> AsyncIterator[tuple[Any, Export, ManualClock]]:
    clock = ManualClock()
    if kind == "memory":
        memory = MemoryEngine(clock=clock)
        yield memory, LogExport(memory.log), clock
        return
    async with open_sqlite(tmp_path, node="test", clock=clock) as engine:
        export = SqliteExport(engine.path, engine.log, clock)
        try:
            yield engine, export, clock
        finally:
            await export.close()


engines = pytest.mark.parametrize("kind", ["sqlite", "memory"])


@engines
@pytest.mark.parametrize("seed", [1, 2])
async def test_an_export_equals_the_log_row_by_row(tmp_path: Path, kind: str, seed: int) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, clock):
        await fill(engine.log, clock, seed)
        end = engine.log.followed
        table, upto = read_export(await collect(export, Range(0, end)))

        entries = [await engine.log.entry(id) for id in range(1, end + 1)]
        assert table.to_pylist() == [expected(entry) for entry in entries if entry is not None]
        assert upto == end
        kinds = set(table.column("kind").to_pylist())
        assert kinds == {"data", "meta", "expired", "erased"}


@engines
async def test_the_schema_is_exactly_the_promised_one(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, _):
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        table, _ = read_export(await collect(export, Range(0, engine.log.followed)))

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
async def test_an_empty_range_is_a_schema_and_a_trailer(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, _):
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        end = engine.log.followed
        table, upto = read_export(await collect(export, Range(end, end)))

    assert (table.num_rows, upto) == (0, end)
    assert table.schema.equals(arrow.schema())


@engines
async def test_columns_and_streams_select(tmp_path: Path, kind: str) -> None:
    async with engine_with_export(tmp_path, kind) as (engine, export, clock):
        await fill(engine.log, clock, 3, batches=10)
        end = engine.log.followed
        entries = [await engine.log.entry(id) for id in range(1, end + 1)]
        for columns in [("id",), ("body",), ("index", "attributes"), ("kind", "expires_at"), COLUMNS]:
            for patterns in [None, (">",), ("/a", "/many/*"), ("/nobody",)]:
                selection = Selection(patterns, ("/users/7",) if patterns == (">",) else None)
                table, _ = read_export(await collect(export, Range(2, end, columns, selection)))
                assert table.to_pylist() == [
                    {name: expected(entry)[name] for name in columns}
                    for entry in entries
                    if entry is not None and entry.id > 2 and selection.wants(entry.stream)
                ]


async def test_bytes_of_an_expired_body_do_not_leave_the_server(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, clock):
        secret = b"nobody may see this any more"
        await engine.log.append(Batch((Draft("/a", secret, type="t", expires_ms=clock.now_ms() + 1000),)))
        wanted = Range(0, engine.log.followed)
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
        table, _ = read_export(await collect(export, Range(0, end)))  # looks at the size of each batch

        assert sorted(len(body) for body in table.column("body").to_pylist() if len(body) > 4000) == sorted(
            size for size in sizes if size > 4000
        )
        assert table.column("id").to_pylist() == list(range(1, end + 1))


async def test_what_is_trimmed_while_it_is_read_is_no_shorter_export(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 100) for _ in range(BATCH_ENTRIES))))
        stream = export.stream(Range(0, engine.log.followed))
        await anext(stream)
        await engine.log.trim(10_000)
        with pytest.raises(Trimmed):
            _ = [piece async for piece in stream]


async def test_an_export_process_that_dies_breaks_its_exports_and_no_other(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 1000) for _ in range(BATCH_ENTRIES))))
        wanted = Range(0, engine.log.followed)
        stream = export.stream(wanted)
        await anext(stream)
        os.kill(export._process.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(EngineGone):
            _ = [piece async for piece in stream]
        table, _ = read_export(await collect(export, wanted))
        assert table.num_rows == wanted.upto


async def test_a_reader_that_waits_stops_the_export_process(tmp_path: Path) -> None:
    async with engine_with_export(tmp_path, "sqlite") as (engine, export, _):
        for _ in range(20):
            await engine.log.append(Batch(tuple(Draft("/a", b"x" * 4000) for _ in range(BATCH_ENTRIES))))
        inlet = await export._begin(Range(0, engine.log.followed))  # type: ignore[attr-defined]
        await wait_until_async(lambda: inlet._paused)
        assert INLET_BYTES <= inlet._waiting_bytes < 2 * INLET_BYTES
        inlet.close()
        export._ended()  # type: ignore[attr-defined]


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
            table, _ = read_export(await collect(export, Range(0, end, ("id", "size"))))
            # Then each export has every row up to its end
            assert table.column("id").to_pylist() == list(range(1, end + 1))
            exports += 1
        await writing


def test_the_server_never_loads_a_second_copy_of_sqlite(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
import penstock.server.app
from penstock.core.clock import WallClock
from penstock.core.export import Range
from penstock.storage.sqlite import open_sqlite
from penstock.storage.sqlite.export import SqliteExport
from penstock.values import Batch, Draft

async def main():
    async with open_sqlite(Path(sys.argv[1]), node="test") as engine:
        await engine.log.append(Batch((Draft("/a", b"x"),)))
        export = SqliteExport(engine.path, engine.log, WallClock(), idle_seconds=0)
        pieces = [piece async for piece in export.stream(Range(0, engine.log.followed))]
        process = export._process.process
        while process.poll() is None:
            await asyncio.sleep(0.01)
        await export.close()
        print(len(b"".join(pieces)) > 500, process.returncode, {"pyarrow", "adbc_driver_sqlite"} & set(sys.modules))

asyncio.run(main())
"""
    command, environment = [sys.executable, "-c", program, str(tmp_path)], {**os.environ, "PYTHONPATH": SOURCE}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.stdout == "True 0 set()\n", result.stderr


# ── over HTTP ──────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Site:
    """A listener with the two paths of the export."""

    port: int
    engine: Any
    exporter: Exporter
    keys: Any

    async def get(self, path: str, token: str = ADMIN, **params: object) -> tuple[int, dict[str, str], bytes]:
        return await asyncio.to_thread(self._get, path, token, params)

    def _get(self, path: str, token: str, params: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", f"{path}?{urlencode(params)}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@asynccontextmanager
async def site(
    tmp_path: Path,
    kind: str = "memory",
    export: Export | None = None,
    settings: ConnectionSettings | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    async with engine_with_export(tmp_path, kind) as (engine, own, clock), Hub(engine.log) as hub:
        keys = open_keys(tmp_path)
        wheel = Wheel(asyncio.get_running_loop())
        parts = {
            "log": engine.log, "mailbox": engine.mailbox, "registry": engine.registry, "bus": engine.bus,
            "hub": hub, "clock": clock, "ledger": Ledger(engine.log, clock, node="test"), "gate": Gate(keys, ADMIN),
            "wheel": wheel, "body_limit": 1 << 20, "caps": Caps(0),
            "members": Alone(),
        }  # fmt: skip
        context = Context(**{field.name: parts[field.name] for field in dataclasses.fields(Context)})
        exporter = Exporter(context, export or own, **options)
        routes = [
            Route("GET", "/v1/log/plan", exporter.plan),
            Route("GET", "/v1/log/arrow", exporter.arrow, timeout=None),
        ]
        async with Listener(Router(routes), settings, wheel=wheel) as listener:
            yield Site(listener.address[1], engine, exporter, keys)


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


async def publish(node: Site, count: int = 1, stream: str = "/a", body: bytes = b"x") -> int:
    await node.engine.log.append(Batch(tuple(Draft(stream, body) for _ in range(count))))
    followed: int = node.engine.log.followed
    return followed


async def test_a_plan_and_its_slices_are_the_log(tmp_path: Path) -> None:
    async with site(tmp_path, "sqlite") as node:
        for _ in range(3):
            end = await publish(node, 900)
        status, headers, body = await node.get("/v1/log/plan", after=0, parts=4)
        plan = json.loads(body)
        assert (status, plan["after"], plan["upto"]) == (200, 0, end)
        assert set(plan["slices"][0]) == {"lo", "hi", "day", "rows", "bytes"}
        ids: list[int] = []
        for part in plan["slices"]:
            status, headers, body = await node.get("/v1/log/arrow", after=part["lo"], upto=part["hi"], columns="id")
            table, upto = read_export(body)
            assert headers["content-type"] == "application/vnd.apache.arrow.stream"
            assert headers["transfer-encoding"] == "chunked"
            assert (status, table.num_rows, upto) == (200, part["rows"], part["hi"])
            ids += table.column("id").to_pylist()
        assert ids == list(range(1, end + 1))


async def test_a_plan_keeps_its_limits(tmp_path: Path) -> None:
    async with site(tmp_path, "sqlite") as node:
        await publish(node, 500, body=b"x" * 10)
        _, _, by_rows = await node.get("/v1/log/plan", after=0, max_rows=7)
        _, _, by_bytes = await node.get("/v1/log/plan", after=10, max_bytes=95)
        assert [(part["lo"], part["hi"]) for part in json.loads(by_rows)["slices"]] == [(0, 7)]
        assert json.loads(by_bytes)["upto"] == 19


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/log/plan", {}),
        ("/v1/log/plan", {"after": "x"}),
        ("/v1/log/plan", {"after": 2, "upto": 1}),
        ("/v1/log/plan", {"after": 0, "parts": 0}),
        ("/v1/log/plan", {"after": 0, "streams": "/a"}),
        ("/v1/log/arrow", {"after": 0}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "columns": "id,boddy"}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "columns": ""}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "streams": "a"}),
        ("/v1/log/arrow", {"after": 0, "upto": 1, "limit": 1}),
    ],
)
async def test_what_cannot_be_understood_is_refused(tmp_path: Path, path: str, params: dict[str, object]) -> None:
    async with site(tmp_path) as node:
        status, _, _ = await node.get(path, **params)
        assert status == 400


@pytest.mark.parametrize("path", ["/v1/log/plan", "/v1/log/arrow"])
async def test_below_the_trim_point_is_gone(tmp_path: Path, path: str) -> None:
    async with site(tmp_path) as node:
        end = await publish(node, 10)
        await node.engine.log.trim(5)
        status, _, body = await node.get(path, after=4, upto=end)
        assert (status, code(body)) == (410, "range_trimmed")
        status, _, _ = await node.get(path, after=5, upto=end)
        assert status == 200


@pytest.mark.parametrize("path", ["/v1/log/plan", "/v1/log/arrow"])
async def test_an_id_that_never_comes_is_a_503(tmp_path: Path, path: str) -> None:
    async with site(tmp_path, patience=0.01) as node:
        end = await publish(node)
        status, headers, body = await node.get(path, after=0, upto=end + 1)
        assert (status, code(body), headers["retry-after"]) == (503, "not_followed", "1")


async def test_an_id_that_is_on_its_way_is_waited_for(tmp_path: Path) -> None:
    async with site(tmp_path, patience=20) as node:
        end = await publish(node)
        request = asyncio.create_task(node.get("/v1/log/arrow", after=end, upto=end + 1))
        await wait_until_async(lambda: node.exporter._waiting)
        await publish(node)
        table, upto = read_export((await request)[2])
        assert (table.num_rows, upto) == (1, end + 1)


async def test_who_may_export_what(tmp_path: Path) -> None:
    async with site(tmp_path) as node:
        await publish(node, stream="/users/7")
        await publish(node, stream="/users/8")
        end = await publish(node, stream="/a")
        reader = node.keys.issue("7", subscribe=(">",))
        job = node.keys.issue("7", subscribe=(">",), grants=("export",))
        narrow = node.keys.issue("7", subscribe=("/a",), grants=("export",))
        wanted = {"after": 0, "upto": end}

        async def status(path: str, token: str, **more: object) -> int:
            return (await node.get(path, token, **wanted, **more))[0]

        assert await status("/v1/log/plan", "nonsense") == 401
        assert await status("/v1/log/plan", reader) == 403
        assert await status("/v1/log/plan", narrow) == 200
        assert await status("/v1/log/arrow", reader, streams=">") == 403
        assert await status("/v1/log/arrow", job) == 403
        assert await status("/v1/log/arrow", narrow, streams="/b") == 403
        assert await status("/v1/log/arrow", narrow, streams="/a") == 200
        _, _, body = await node.get("/v1/log/arrow", job, **wanted, streams=">")
        shown = set(read_export(body)[0].column("stream").to_pylist())
        assert {"/a", "/users/7"} <= shown
        assert "/users/8" not in shown


names = st.lists(st.sampled_from(["users", "7", "8", "a", "_x"]), min_size=1, max_size=3).map(
    lambda n: "/" + "/".join(n)
)
patterns = st.one_of(
    names, st.sampled_from([">", "/*", "/>", "/*/7", "/users/*", "/users/>", "/users/7", "/*/*", "/a/>", "/_x/>"])
)


class Asked:
    """As much of a request as a selection looks at."""

    def __init__(self, streams: list[str]) -> None:
        self.params = {"streams": ",".join(streams)}


@given(st.lists(patterns, min_size=1, max_size=3), st.lists(patterns, min_size=1, max_size=3), names)
def test_a_selection_shows_what_the_grants_allow_and_nothing_else(
    streams: list[str], grants: list[str], name: str
) -> None:
    caller = Caller("7", subscribe=tuple(grants), grants=frozenset({"export"}))
    try:
        selection = _selection(Asked(streams), caller)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - refused: nothing is shown
        return
    asked = Selection(tuple(streams)).wants(name)
    assert selection.wants(name) == (asked and caller.may_read(name))


# ── complete, or broken off ────────────────────────────────────────────────────────────────────


class Scripted:
    """An export whose pieces a test decides on."""

    def __init__(self, pieces: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._pieces = pieces

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        return []

    def stream(self, wanted: Range) -> AsyncGenerator[bytes, None]:
        return self._pieces()

    async def close(self) -> None:
        return None


async def messages(tmp_path: Path) -> list[bytes]:
    """The messages of a complete export."""
    async with engine_with_export(tmp_path, "memory") as (engine, export, _):
        for _ in range(3):
            await engine.log.append(Batch(tuple(Draft("/a", b"x") for _ in range(BATCH_ENTRIES))))
        return [piece async for piece in export.stream(Range(0, engine.log.followed))]


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
        yield arrow.opening(COLUMNS)
        yield arrow.closing(COLUMNS, 0, 1)

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
        await asyncio.wait_for(closed.wait(), 5)
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

    async with site(tmp_path, export=Scripted(pieces), settings=ConnectionSettings(high_water=high_water)) as node:
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
