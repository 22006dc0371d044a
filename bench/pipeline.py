"""The pipeline: what an exported event costs, how fast the archive is, how fresh the lake is, and what idling costs.

The lake: what a commit costs after many, whether two tasks do more than one, and what it is to read it by name.

The floor of the archive is Spark writing the very same rows from its memory, with the same settings. With
`--events 5000000 --only archive` it shows whether the archive stays linear up to there.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.rig.duckdb_readers import measure_duckdb
from bench.rig.folding import measure_folding
from bench.rig.freshness import measure_freshness
from bench.rig.lake_commits import DAY_TURNS, measure_commits, measure_day
from bench.rig.machine import CpuMeter, memory_kb, resident_kb
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from bench.rig.sink import measure_sink
from bench.rig.why import measure_why
from penstock.iceberg.files import PlannedFile
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace, archive
from penstock.pipeline.lake import open_lake
from penstock.pipeline.lake_identity import bind
from penstock.pipeline.session import LOCAL, open_session
from penstock.testing import RunningServer, start_s3, wait_until

PARTS = ("export", "archive", "s3", "sink", "commits", "day", "fold", "duckdb", "why", "freshness", "idle")
BODY_BYTES = 200
LINES = 10_000
SMALL_EVENTS = 100_000
"""What a long archive is compared with."""
WARM_ROUNDS = 3
FLOOR_ROWS = 1_000_000
"""What Spark writes from memory: it has a heap of 1 GB."""
_PRINTABLE = bytes(33 + number % 94 for number in range(256))


@dataclass(frozen=True, slots=True)
class Run:
    """What one archive, or one write of its floor, has taken."""

    rows: int
    seconds: float
    spark_cpu: float
    server_cpu: float = 0.0


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("pipeline", "The data pipeline on Spark.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=60, help="of publishing, and of idling, in `up`")
    parser.add_argument(
        "--deliveries", type=int, default=5_000_000, help="that are folded, counted, and looked through"
    )
    parser.add_argument("--commits", type=int, default=10_000, help="of which the next is compared with the tenth")
    parser.add_argument("--turns", type=int, default=DAY_TURNS, help="of `up` that are simulated, one in four seconds")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, and no other; may be repeated")
    given = parser.parse_args(argv)
    if given.quick:
        given.deliveries, given.commits, given.turns = 8_000, 20, 8
        given.events, given.rounds, given.seconds = 20_000, 1, 5
    wanted = set(given.only or PARTS)
    with reporting("pipeline", given) as (report, folder):
        if wanted & {"export", "archive", "s3", "sink"}:
            _log(report, folder, given, wanted)
        if "commits" in wanted:
            measure_commits(report, folder, given.commits)
        if "day" in wanted:
            measure_day(report, folder, given.turns)
        if "fold" in wanted:
            report.add(measure_folding(folder, given.deliveries, given.rounds, session))
        if "duckdb" in wanted:
            report.add(measure_duckdb(folder, given.deliveries))
        if "why" in wanted:
            report.add(measure_why(folder, given.deliveries))
        if wanted & {"freshness", "idle"}:
            _up(report, folder, given.seconds, wanted)
    return 0


def _log(report: Report, folder: Path, given: Any, wanted: set[str]) -> None:
    with penstock(folder / "data") as (server, target):
        say(f"publishing {given.events:,} events")
        client = PipelineClient(server.url, server.admin_token)
        fill(client, given.events)
        if "export" in wanted:
            report.add(_export(client, server, target.pid, given))
        if not wanted & {"archive", "s3", "sink"}:
            return
        with session() as spark:
            place = Workplace(spark, client, open_lake(folder / "lake"))
            bind(client, place.lake)
            if "archive" in wanted:
                _archive(report, place, target.pid, folder, given)
            if "s3" in wanted:
                _archive_to_s3(report, place, target.pid, folder, given)
            if "sink" in wanted:
                measure_sink(report, spark, client, target.pid, folder / "sink", given.events, given.rounds)


@contextmanager
def session(master: str = LOCAL) -> Iterator[SparkSession]:
    """Spark as the driver has it."""
    spark = open_session(master)
    try:
        yield spark
    finally:
        spark.stop()


def fill(client: PipelineClient, events: int) -> None:
    """Publish random bodies."""
    randomness = random.Random(1)
    for begin in range(0, events, LINES):
        lines = min(LINES, events - begin)
        body = b"\n".join(randomness.randbytes(BODY_BYTES).translate(_PRINTABLE) for _ in range(lines))
        client.call("POST", "/v1/publish", {"stream": "/bench"}, body, {"Content-Type": "application/x-ndjson"})


# ── export ─────────────────────────────────────────────────────────────────────────────────────


def _export(client: PipelineClient, server: RunningServer, pid: int, given: Any) -> Figure:
    newest, costs, floors = client.newest(), [], []
    _read(client, min(newest, 1000))  # the export's process has started
    for _ in range(given.rounds):
        meter = CpuMeter(pid)
        rows = _read(client, newest)
        costs.append(1e6 * meter.seconds() / rows)
        floors.append(_select(server.data / "penstock.db"))
    unit, name = "µs of server CPU per event", f"export, {given.events:,} events"
    return Figure(name, median(costs), unit, median(floors), "rows by sqlite3", 2.0, 1.4)


def _read(client: PipelineClient, upto: int) -> int:
    rows = 0
    with client.open("/v1/log/arrow", {"after": 0, "upto": upto}) as answer:
        for batch in pa.ipc.open_stream(answer):
            rows += batch.num_rows
    return rows


def _select(file: Path) -> float:
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
    before = time.process_time()
    rows = sum(1 for _ in connection.execute("SELECT * FROM entries"))
    taken = time.process_time() - before
    connection.close()
    return 1e6 * taken / rows


# ── archive ────────────────────────────────────────────────────────────────────────────────────


def _archive(report: Report, place: Workplace, server: int, folder: Path, given: Any) -> None:
    few = min(SMALL_EVENTS, given.events // 10)
    small, whole, floors = [], [], []
    for _ in range(WARM_ROUNDS):
        _take(place, server, few)
    for _ in range(given.rounds):
        settle(given)
        small.append(_take(place, server, few))
        whole.append(_take(place, server, place.client.newest()))
        floors.append(_write_from_memory(place, server, folder / "floor"))
    rate, floor = (median([run.rows / run.seconds for run in runs]) for runs in (whole, floors))
    cpu = {
        "spark_cpu_us": median([1e6 * run.spark_cpu / run.rows for run in whole]),
        "server_cpu_us": median([1e6 * run.server_cpu / run.rows for run in whole]),
        "floor_cpu_us": median([1e6 * run.spark_cpu / run.rows for run in floors]),
    }
    written = "Spark writing the same rows from memory"
    of = f"{given.events:,} events"
    report.add(
        Figure(f"archive, {of}", rate, "events/s", floor, written, 350_000, 500_000, higher_is_better=True, detail=cpu)
    )
    spent, least = cpu["spark_cpu_us"], cpu["floor_cpu_us"]
    report.add(Figure(f"Spark's part, {of}", spent, "µs of CPU per event", least, written, 1.5, 1.2, judged="ratio"))
    slow = median([1e6 * run.seconds / run.rows for run in small])
    name = f"time per event, of {given.events:,}"
    report.add(Figure(name, 1e6 / rate, "µs", slow, f"of {few:,}", 1.5, 1.1, judged="ratio"))


def _archive_to_s3(report: Report, place: Workplace, server: int, folder: Path, given: Any) -> None:
    """The same archive into a folder and to an object store on this machine, in turn."""
    rates: dict[str, list[float]] = {"folder": [], "s3": []}
    with start_s3(folder / "s3") as s3, _environment(s3.environment):
        far = open_lake("s3://lake/bench")
        far.epoch = place.lake.epoch
        places = {"folder": place, "s3": Workplace(place.spark, place.client, far)}
        for number in range(given.rounds + 1):
            for name, one in places.items():
                run = _take(one, server, place.client.newest())
                rates[name] += [run.rows / run.seconds] if number else []  # the first round is for warming up
        spent = CpuMeter(s3.process.pid)
        last = _take(places["s3"], server, place.client.newest())
        detail = {"s3_server_cpu_us": 1e6 * spent.seconds() / last.rows}
        _forget(place.client)
    folder_rate, s3_rate = (median(found) for found in rates.values())
    report.add(
        Figure(f"archive to S3, {given.events:,} events", s3_rate, "events/s", folder_rate, "into a folder", 0.4, 0.7,
               judged="ratio", higher_is_better=True, detail=detail)
    )  # fmt: skip


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _forget(client: PipelineClient) -> None:
    """Let the next archive begin with an empty table."""
    kept = client.get("lake/events")
    client.put("lake/events", {"fence": kept.value.get("fence", 0), "done": 0}, expect=kept.version)


def _take(place: Workplace, server: int, upto: int) -> Run:
    """Archive the log up to an id, from the beginning."""
    _forget(place.client)
    began, of_spark, of_server = time.monotonic(), CpuMeter(os.getpid(), without=server), CpuMeter(server)
    rows = archive.run(_UpTo.make(place, upto), {}).data["rows"]
    return Run(rows, time.monotonic() - began, of_spark.seconds(), of_server.seconds())


class _UpTo(PipelineClient):
    """The log as if it ended earlier."""

    upto = 0

    @classmethod
    def make(cls, place: Workplace, upto: int) -> Workplace:
        client = cls(place.client.url, place.client.token)
        client.upto = upto
        return Workplace(place.spark, client, place.lake)

    def newest(self, after: int = -1, *, wait: float = 0) -> int:
        return self.upto


def _write_from_memory(place: Workplace, server: int, folder: Path) -> Run:
    frame = place.read("events", _first_files(place)).repartition(2).cache()
    rows = frame.count()
    began, meter = time.monotonic(), CpuMeter(os.getpid(), without=server)
    frame.write.mode("overwrite").parquet(str(folder))
    run = Run(rows, time.monotonic() - began, meter.seconds())
    frame.unpersist(blocking=True)
    return run


def _first_files(place: Workplace) -> list[PlannedFile]:
    found, rows = [], 0
    for one in place.files("events"):
        found.append(one)
        rows += one.rows
        if rows >= FLOOR_ROWS:
            break
    return found


# ── up ─────────────────────────────────────────────────────────────────────────────────────────


def _up(report: Report, folder: Path, seconds: int, wanted: set[str]) -> None:
    with _running(folder / "up") as (process, client):
        wait_until(lambda: _caught_up(client), within=180)
        measure_up(report, process.pid, client, seconds, wanted)


def measure_up(report: Report, pid: int, client: PipelineClient, seconds: int, wanted: set[str]) -> None:
    """Measure an `up` that has caught up."""
    if "freshness" in wanted:
        report.add(measure_freshness(client, seconds))
    if "idle" in wanted:
        _idle(report, pid, client, seconds)


def _idle(report: Report, pid: int, client: PipelineClient, seconds: int) -> None:
    """What `up` takes while nothing is published: the server, the driver, its JVM and its workers."""
    wait_until(lambda: _caught_up(client), within=180)
    meter, began = CpuMeter(pid), time.monotonic()
    time.sleep(seconds)
    cores = meter.seconds() / (time.monotonic() - began)
    report.add(Figure("up idle, CPU", cores, "cores", None, "", 0.15, 0.05))
    resident = {"resident_mb": resident_kb(pid) / 1024}
    report.add(Figure("up idle, memory", memory_kb(pid) / 1024, "MB", None, "", 1200, 1000, detail=resident))


@contextmanager
def _running(data: Path) -> Iterator[tuple[subprocess.Popen[bytes], PipelineClient]]:
    command = [sys.executable, "-m", "penstock", "up", "--data", str(data), "--listen", "127.0.0.1:0"]
    output = data.with_suffix(".out")
    with output.open("wb") as out, data.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=out, stderr=log)
    try:
        url = wait_until(lambda: output.read_text().partition("ready on ")[2].partition(" ")[0], within=30)
        yield process, PipelineClient(url, (data / "admin.token").read_text().strip())
    finally:
        process.terminate()
        process.wait(60)


def _caught_up(client: PipelineClient) -> bool:
    tables = client.call("GET", "/v1/pipeline")["tables"]
    return all(name in tables and not tables[name]["lag"] for name in ("events", "ledger"))
