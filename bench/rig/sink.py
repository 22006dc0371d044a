"""What the sink gets into the log: published by tasks, and by the driver's commit, in turn."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.rig.machine import CpuMeter
from bench.rig.report import Figure, Report, median
from penstock.pipeline import register
from penstock.pipeline.client import PipelineClient

SHAPES = {
    "lines of one stream": ("'/sink/one'", 1),
    "rows of many streams": ("concat('/sink/', id % 997)", 20),
}
"""Where rows go, and by how much fewer there are: those of many streams are some ten a request, not a thousand."""


def measure_sink(
    report: Report, spark: SparkSession, client: PipelineClient, server: int, folder: Path, events: int, rounds: int
) -> None:
    """Add the figures of each shape."""
    register(spark)
    for name, (stream, fewer) in SHAPES.items():
        rows = max(1_000, events // fewer)
        body = "repeat(md5(cast(id AS STRING)), 6)"
        frame = spark.range(0, rows, 1, 2).selectExpr(f"{stream} AS stream", f"encode({body}, 'UTF-8') AS body").cache()
        frame.count()
        taken: dict[str, list[tuple[float, float]]] = {"tasks": [], "commit": []}
        for _ in range(rounds + 1):
            for way, runs in taken.items():
                runs.append(_write(frame, client, server, folder, way))
        frame.unpersist(blocking=True)
        (tasks, cpu), (commit, _) = (
            (median([rows / seconds for seconds, _ in runs[1:]]), median([1e6 * cpu / rows for _, cpu in runs[1:]]))
            for runs in taken.values()
        )
        detail = {
            "rows": rows,
            "server_cpu_us": cpu,
            "spread": [round(rows / seconds) for seconds, _ in taken["tasks"][1:]],
        }
        report.add(
            Figure(f"sink, {rows:,} {name}", tasks, "events/s", commit, "published by the driver's commit", 1.0, 1.5,
                   judged="ratio", higher_is_better=True, detail=detail)
        )  # fmt: skip


def _write(frame: DataFrame, client: PipelineClient, server: int, folder: Path, way: str) -> tuple[float, float]:
    """Seconds of one write, and CPU seconds of the server."""
    writer = frame.write.format("penstock").mode("append").options(url=client.url, token=client.token, publish=way)
    began, meter = time.monotonic(), CpuMeter(server)
    writer.options(writer=uuid.uuid4().hex, staging=str(folder)).save()
    return time.monotonic() - began, meter.seconds()
