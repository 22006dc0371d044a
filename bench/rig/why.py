"""`why` on millions of deliveries: what an operator waits for. The floor is DuckDB on the same files."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.rig.report import Figure, say
from penstock.iceberg.files import write_file
from penstock.iceberg.store import open_store
from penstock.iceberg.tables import Table
from penstock.pipeline.client import PipelineClient
from penstock.testing import RunningServer, start_server
from penstock.wire.lake_files import LakeFile

ENTRIES = 1_000
FILES = 24
QUESTIONS = 200


def measure_why(folder: Path, rows: int) -> Figure:
    """p95 of `/v1/why` with so many *rows* in `deliveries`, in files of which each could hold the answer."""
    lake = folder / "why-lake"
    lake.mkdir(parents=True)
    with start_server(folder / "why-data", lake_url=lake) as server:
        client = PipelineClient(server.url, server.admin_token)
        first = _publish(client)
        readers = [f"reader-{number:06d}" for number in range(max(1, rows // ENTRIES))]
        say(f"writing {len(readers) * ENTRIES:,} deliveries")
        location = _write(lake, readers, first, client.newest())
        client.put("lake/ledger", {"done": client.newest(), "tables": {"deliveries": location}}, expect=0)
        choices = random.Random(1)
        asked = [(first + choices.randrange(ENTRIES), choices.choice(readers)) for _ in range(QUESTIONS)]
        taken = _timed(asked, lambda entry, reader: _ask(client, server, entry, reader))
        floor = _timed(asked, _in_duckdb(lake))
    name = f"why, {len(readers) * ENTRIES:,} deliveries"
    return Figure(name, _p95(taken), "s (p95)", _p95(floor), "DuckDB on the same files", 0.3, 0.08)


def _publish(client: PipelineClient) -> int:
    body = b"\n".join(b"%d" % number for number in range(ENTRIES))
    answer = client.call("POST", "/v1/publish", {"stream": "/why"}, body, {"Content-Type": "application/x-ndjson"})
    client.call("POST", "/v1/publish", {"stream": "/other"}, b"after them")
    return int(answer["first"]["id"])


def _write(lake: Path, readers: list[str], first: int, newest: int) -> str:
    """Rows sorted by entry, as the fold sorts them; every file is named as if it had records of every entry."""
    names, store, written = pa.array(readers), open_store(lake), []
    for number in range(FILES):
        entries = range(first + number * ENTRIES // FILES, first + (number + 1) * ENTRIES // FILES)
        name = LakeFile(number, newest + number + 1, "2026-11-15", "deliveries")
        written.append(write_file(store, name, (_delivered(names, entry) for entry in entries)))
    made = Table.create(store, "deliveries").append([one for one in written if one], now_ms=int(time.time() * 1000))
    return made.location


def _delivered(names: Any, entry: int) -> Any:
    at = pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC"))
    none = pa.scalar(None, pa.timestamp("us", tz="UTC"))
    values = {
        "door": "sps", "recipient": names, "stream": "/why", "first": entry, "last": entry, "key": "", "month": "",
        "number": 0, "state": "acked", "reason": "", "first_time": at, "last_time": at, "sent_time": at,
        "acked_time": at, "attempts": 1, "expires_at": none, "upto": 0,
    }  # fmt: skip
    arrays = [value if isinstance(value, pa.Array) else pa.repeat(value, len(names)) for value in values.values()]
    return pa.Table.from_arrays(arrays, names=list(values))


def _ask(client: PipelineClient, server: RunningServer, entry: int, reader: str) -> None:
    answer = client.call("GET", "/v1/why", {"entry": entry, "recipient": reader})
    if answer["verdict"] != "acked":
        raise AssertionError(f"{answer} ({server.log_text()[-500:]})")


def _in_duckdb(lake: Path) -> Callable[[int, str], None]:
    connection = duckdb.connect()
    query = (
        f"SELECT * FROM read_parquet('{lake}/deliveries/data/*/*.parquet') "  # noqa: S608 - our own folder
        "WHERE recipient = ? AND stream = '/why' AND first <= ? AND last >= ?"
    )

    def ask(entry: int, reader: str) -> None:
        if len(connection.execute(query, [reader, entry, entry]).fetchall()) != 1:
            raise AssertionError(f"DuckDB does not find {entry} for {reader}")

    return ask


def _timed(asked: list[tuple[int, str]], ask: Callable[[int, str], None]) -> list[float]:
    taken = []
    for entry, reader in asked:
        began = time.perf_counter()
        ask(entry, reader)
        taken.append(time.perf_counter() - began)
    return taken


def _p95(taken: list[float]) -> float:
    return sorted(taken)[int(0.95 * len(taken))]
