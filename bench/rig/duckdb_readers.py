"""DuckDB on the table `events`: by its name from the server's catalog, and on the same files by a glob."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.rig.report import Figure, median, say
from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import FileStore, open_store
from penstock.iceberg.tables import Table
from penstock.pipeline.client import PipelineClient
from penstock.testing import start_server
from penstock.wire.lake_files import LakeFile

DUCKDB = Path(__file__).parents[2] / ".venv/duckdb/bin/python"
FILES, STREAMS, BATCH = 10, 100, 10_000
ROUNDS = 7
PROGRAM = """
import importlib, json, pathlib, sys, time, duckdb
asked = json.load(sys.stdin)
connection = duckdb.connect()
for name in ("avro", "httpfs", "iceberg"):
    folder = pathlib.Path(importlib.import_module("duckdb_extension_" + name).__file__).parent
    connection.execute(f"LOAD '{next(folder.rglob('*.duckdb_extension'))}'")
for statement in asked["first"]:
    connection.execute(statement)
taken = {name: [] for name in asked["queries"]}
for _ in range(asked["rounds"]):
    for name, query in asked["queries"].items():
        began = time.perf_counter()
        rows = connection.execute(query).fetchall()
        taken[name].append(time.perf_counter() - began)
        assert sum(row[1] for row in rows) == asked["rows"], (name, rows[:3])
print(json.dumps(taken))
"""


def measure_duckdb(folder: Path, events: int) -> Figure:
    """A count by stream over so many *events*."""
    lake = folder / "duckdb-lake"
    lake.mkdir(parents=True)
    with start_server(folder / "duckdb-data", lake_url=lake) as server:
        client = PipelineClient(server.url, server.admin_token)
        say(f"writing {events:,} events")
        client.put("lake/events", {"done": events, "tables": {"events": _write(open_store(lake), events)}}, expect=0)
        catalog = f"(TYPE iceberg, ENDPOINT '{server.url}/iceberg', SECRET penstock)"
        secret = f"CREATE SECRET penstock (TYPE iceberg, TOKEN '{server.admin_token}')"
        count = "SELECT stream, count(*) FROM {} GROUP BY stream"
        places = {"rest": "lake.penstock.events", "glob": f"read_parquet('{lake}/events/data/*/*.parquet')"}
        queries = {name: count.format(place) for name, place in places.items()}
        taken = _ask([secret, f"ATTACH 'penstock' AS lake {catalog}"], queries, events)
    rest, glob = (median(taken[name][1:]) for name in ("rest", "glob"))
    spread = [round(one, 4) for name in ("rest", "glob") for one in sorted(taken[name][1:])]
    return Figure(f"DuckDB by REST, count of {events:,} by stream", rest, "s", glob, "the same files by glob", 1.5, 1.1,
                  judged="ratio", detail={"spread": spread})  # fmt: skip


def _ask(first: list[str], queries: dict[str, str], rows: int) -> dict[str, list[float]]:
    asked = {"first": first, "queries": queries, "rounds": ROUNDS, "rows": rows}
    done = subprocess.run([DUCKDB, "-c", PROGRAM], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"DuckDB failed (./penstock install duckdb?): {done.stderr[-1000:]}")
    taken: dict[str, list[float]] = json.loads(done.stdout)
    return taken


def _write(store: FileStore, events: int) -> str:
    at, written = datetime.now(UTC), []
    for number in range(FILES):
        lo, hi = number * events // FILES, (number + 1) * events // FILES
        batches = (_batch(begin, min(hi, begin + BATCH), at) for begin in range(lo, hi, BATCH))
        written.append(write_file(store, LakeFile(lo, hi, f"{at:%Y-%m-%d}", "events"), batches))
    made = Table.create(store, "events").append([one for one in written if one], now_ms=int(time.time() * 1000))
    return made.location


def _batch(after: int, upto: int, at: datetime) -> pa.Table:
    ids = range(after + 1, upto + 1)
    values: dict[str, Any] = {
        "id": ids, "stream": [f"/streams/{id % STREAMS}" for id in ids], "index": [id // STREAMS for id in ids],
        "body": [b"%0100d" % id for id in ids],
    }  # fmt: skip
    same = {"chunk": 0, "offset": 0, "size": 101, "kind": "data", "time": at, "schema_version": 1}
    schema = arrow_schema("events")
    columns = [
        pa.array(values[one.name], one.type) if one.name in values
        else pa.repeat(pa.scalar(same.get(one.name), one.type), len(ids))
        for one in schema
    ]  # fmt: skip
    return pa.table(columns, schema=schema)
