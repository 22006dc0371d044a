"""Fills a log, and compares it with a lake."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from penstock.iceberg.files import arrow_schema, read_batches
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.lake import RECORD_OF, open_lake
from penstock.wire.table_columns import NAMES
from tests.spark.jvm_classes import CLASSES

LINES = 10_000  # of one request

_QUICK = f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:SharedArchiveFile="{CLASSES}"'
"""A JVM that lives for some seconds does not win back what it spends on compiling thoroughly."""

QUICK_START = {
    "spark.driver.extraJavaOptions": _QUICK,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a session of the test's own. Its frames have few rows: code that is made for them costs more than it saves."""
QUICK_JAVA = {"JDK_JAVA_OPTIONS": _QUICK}
"""For the environment of programs that start Java themselves."""


def publish(client: PipelineClient, stream: str, bodies: Iterable[bytes]) -> None:
    """Publish *bodies* to *stream*, in order."""
    lines: list[bytes] = []
    for body in bodies:
        lines.append(body)
        if len(lines) == LINES:
            _send(client, stream, lines)
            lines = []
    if lines:
        _send(client, stream, lines)


def fill(client: PipelineClient, count: int, *, seed: int = 1, streams: int = 5, size: int = 200) -> None:
    """Publish *count* events of random bytes, spread over some streams."""
    randomness = random.Random(seed)
    for number in range(0, count, LINES):
        stream = f"/load/{number // LINES % streams}"
        publish(client, stream, (body_of(randomness, size) for _ in range(min(LINES, count - number))))


def body_of(randomness: random.Random, size: int) -> bytes:
    return randomness.randbytes(size).translate(_PRINTABLE)


_PRINTABLE = bytes(33 + number % 94 for number in range(256))


def _send(client: PipelineClient, stream: str, lines: list[bytes]) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    client.call("POST", "/v1/publish", {"stream": stream}, b"\n".join(lines), headers)


def exported(client: PipelineClient, upto: int, after: int = 0) -> pa.Table:
    """What the log holds, in order of id."""
    batches = []
    with client.open("/v1/log/arrow", {"after": after, "upto": upto}) as answer:
        reader = pa.ipc.open_stream(answer)
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            if metadata is not None:
                break
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def archived(client: PipelineClient, lake: Path | str, table: str = "events") -> pa.Table:
    """What a table of the lake holds, as the server's record points at it; `events` in order of id."""
    opened = open_lake(lake)
    files = opened.files(table, client.get(f"lake/{RECORD_OF[table]}").value)
    batches = [batch for one in files for batch in read_batches(opened.store, one.location)]
    found = pa.Table.from_batches(batches, arrow_schema(table).remove_metadata() if not batches else None)
    return found.sort_by("id") if table == "events" else found


def differences(client: PipelineClient, lake: Path | str) -> list[str]:
    """How `events` differs from the log; empty if it does not."""
    log, rows = exported(client, client.newest()), archived(client, lake)
    if log.num_rows != rows.num_rows:
        missing = set(log.column("id").to_pylist()) - set(rows.column("id").to_pylist())
        return [f"{rows.num_rows} rows of {log.num_rows}, {len(missing)} missing"]
    return [name for name in NAMES if not log.column(name).equals(rows.column(name).cast(log.schema.field(name).type))]
