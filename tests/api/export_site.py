"""What tests of the export share: a careful reader, engines with an export, and a listener with its two paths."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from penstock.api.auth import Authenticator, open_keys
from penstock.api.context import Context
from penstock.api.v1.export import ExportApi
from penstock.core.arrow import BATCH_BYTES
from penstock.core.clock import ManualClock
from penstock.core.export import Block, Export, ExportRange, LogExport
from penstock.core.hub import Hub
from penstock.core.ledger import Ledger
from penstock.core.liveness import SingleMember
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.export import SqliteExport
from penstock.http.listener import Listener
from penstock.http.rate_limits import Caps
from penstock.http.routing import Route, Router
from penstock.http.timers import Wheel
from penstock.settings import ServerSettings
from penstock.values import Batch, Draft

ADMIN = "a-token-for-tests"


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


async def collect(export: Export, wanted: ExportRange) -> bytes:
    return b"".join([piece async for piece in export.stream(wanted)])


# ── logs to export ─────────────────────────────────────────────────────────────────────────────


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


class Scripted:
    """An export whose pieces a test decides on."""

    def __init__(self, pieces: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._pieces = pieces

    async def blocks(self, after: int, upto: int, step: int) -> list[Block]:
        return []

    def stream(self, wanted: ExportRange) -> AsyncGenerator[bytes, None]:
        return self._pieces()

    async def close(self) -> None:
        return None


# ── over HTTP ──────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Site:
    """A listener with the two paths of the export."""

    port: int
    engine: Any
    exporter: ExportApi
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
    write_high: int = 65_536,
    **options: Any,
) -> AsyncIterator[Site]:
    async with engine_with_export(tmp_path, kind) as (engine, own, clock), Hub(engine.log) as hub:
        keys = open_keys(tmp_path)
        wheel = Wheel(asyncio.get_running_loop())
        parts = {
            "log": engine.log, "mailbox": engine.mailbox, "registry": engine.registry, "bus": engine.bus,
            "hub": hub, "clock": clock, "ledger": Ledger(engine.log, clock, node="test"),
            "authenticator": Authenticator(keys, ADMIN),
            "wheel": wheel, "body_limit": 1 << 20, "caps": Caps(0),
            "members": SingleMember(),
        }  # fmt: skip
        context = Context(
            **{field.name: parts[field.name] for field in dataclasses.fields(Context) if field.name in parts}
        )
        exporter = ExportApi(context, export or own, **options)
        routes = [
            Route("GET", "/v1/log/plan", exporter.plan),
            Route("GET", "/v1/log/arrow", exporter.arrow, timeout=None),
        ]
        settings = ServerSettings(listen="127.0.0.1:0", write_high=write_high)
        async with Listener(Router(routes), settings, wheel=wheel) as listener:
            yield Site(listener.address[1], engine, exporter, keys)


def code(body: bytes) -> str:
    found: str = json.loads(body)["error"]["code"]
    return found


async def publish(node: Site, count: int = 1, stream: str = "/a", body: bytes = b"x") -> int:
    await node.engine.log.append(Batch(tuple(Draft(stream, body) for _ in range(count))))
    followed: int = node.engine.log.followed
    return followed
