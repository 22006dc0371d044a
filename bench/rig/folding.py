"""The ledger decoded and folded, by one task and by two: whether a second core is a second pair of hands."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.rig.report import Figure, median, say
from penstock.iceberg.files import arrow_schema, write_file
from penstock.iceberg.store import FileStore
from penstock.iceberg.tables import Table
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace, ledger
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.ledger_rows import STREAM
from penstock.testing import start_server
from penstock.wire.lake_files import LakeFile

RECIPIENTS = 1_000
"""Of a batch, and of an entry."""
FILES = 8
Session = Callable[[str], AbstractContextManager[SparkSession]]


def measure_folding(folder: Path, records: int, rounds: int, session: Session) -> Figure:
    """Records a second, decoded into `ledger` and folded into `deliveries`, with two tasks at a time and with one."""
    with start_server(folder / "fold-data", lake_url=folder / "fold-lake") as server:
        client, lake = PipelineClient(server.url, server.admin_token), open_lake(folder / "fold-lake")
        bind(client, lake)
        say(f"writing {records:,} records")
        batches = max(FILES, records // RECIPIENTS)
        client.put("lake/events", {"done": batches, "tables": {"events": _write(lake.store, batches)}}, expect=0)
        rates: dict[str, list[float]] = {"local[1]": [], "local[2]": []}
        for _ in range(rounds):
            for master, found in rates.items():
                with session(master) as spark:
                    place = Workplace(spark, client, lake)
                    _fold(place, batches // 10)  # warm: workers have started
                    found.append(batches * RECIPIENTS / _fold(place, batches))
    one, two = (median(found) for found in rates.values())
    detail = {"spread": [round(rate) for found in rates.values() for rate in found]}
    name = f"ledger and deliveries, {batches * RECIPIENTS:,} records, 2 tasks"
    return Figure(name, two, "records/s", one, "1 task", 1.6, 1.8, judged="ratio", higher_is_better=True, detail=detail)


def _fold(place: Workplace, upto: int) -> float:
    """Seconds of a run that decodes and folds the ledger from its beginning."""
    kept, events = place.client.get("lake/ledger"), place.client.get("lake/events")
    place.client.put("lake/ledger", {"fence": kept.value.get("fence", 0), "done": 0}, expect=kept.version)
    place.client.put("lake/events", {**events.value, "done": max(1, upto)}, expect=events.version)
    began = time.monotonic()
    ledger.run(place, {})
    return time.monotonic() - began


def _write(store: FileStore, batches: int) -> str:
    """`events` with so many batches of the ledger, each about one entry for all recipients."""
    at = datetime.now(UTC)
    written = []
    for number in range(FILES):
        lo, hi = number * batches // FILES, (number + 1) * batches // FILES
        rows = [_row(id, int(at.timestamp() * 1000), at) for id in range(lo + 1, hi + 1)]
        schema = arrow_schema("events")
        table = pa.table([pa.array([row.get(one.name) for row in rows], one.type) for one in schema], schema=schema)
        written.append(write_file(store, LakeFile(lo, hi, f"{at:%Y-%m-%d}", "events"), [table]))
    made = Table.create(store, "events").append([one for one in written if one], now_ms=int(time.time() * 1000))
    return made.location


def _row(id: int, ms: int, at: datetime) -> dict[str, Any]:
    who = [["sps", f"reader-{number:04d}"] for number in range(RECIPIENTS)]
    head = {
        "node": "n1", "epoch": 1, "sequence": id - 1, "who": who, "groups": [RECIPIENTS],
        "rows": [[ms, "sent", "", "/bench", id, id, 0]],
    }  # fmt: skip
    body = json.dumps(head).encode() + b"\n" + array("I", range(RECIPIENTS)).tobytes()
    return {"id": id, "stream": STREAM, "index": id - 1, "kind": "data", "time": at, "body": body}
