"""A real standalone master with two workers on loopback; one of them is killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pyspark
import pytest

from penstock.pipeline.client import PipelineClient
from penstock.pipeline.commit import watermark
from penstock.testing import RunningServer, wait_until
from tests.spark.filling import QUICK_JAVA, differences, fill
from tests.spark.sockets import beyond_loopback

HOME = Path(pyspark.__file__).parent
ROWS = 200_000


@contextmanager
def spark_class(name: str, folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One of Spark's daemons, in a process group of its own, until the block ends."""
    log = folder / f"{name.lower()}-{len(list(folder.glob('*.log')))}.log"
    environment = {**os.environ, **QUICK_JAVA, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True, cwd=folder)
    try:
        yield process, log
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The master's address, and its two workers."""
    loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with spark_class("Master", tmp_path, *loopback) as (_, log):
        found = wait_until(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), within=60)
        size = ("--cores", "1", "--memory", "1100m", "--work-dir", str(tmp_path / "work"))
        with (
            spark_class("Worker", tmp_path, *loopback, *size, found[0]) as (one, one_log),
            spark_class("Worker", tmp_path, *loopback, *size, found[0]) as (two, two_log),
        ):
            for worker_log in (one_log, two_log):
                wait_until(lambda worker_log=worker_log: "Successfully registered" in worker_log.read_text(), within=60)
            yield found[0], [one, two]


def is_whole(path: Path) -> bool:
    try:
        return bool(parquet.read_metadata(path).num_rows)
    except pa.ArrowInvalid:
        return False


@pytest.mark.long
def test_archive_and_audit_survive_the_loss_of_a_worker(
    server: RunningServer, tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    client, lake, log = PipelineClient(server.url, server.admin_token), tmp_path / "lake", tmp_path / "job.log"
    master, workers = cluster
    fill(client, ROWS)
    newest = client.newest()
    where = ["--master", master, "--url", server.url, "--token", server.admin_token, "--lake", str(lake)]
    with (tmp_path / "job.json").open("wb") as out, log.open("wb") as errors:
        # An audit begins by bringing the lake up to date
        command = [sys.executable, "-m", "penstock", "audit", "--json", *where]
        environment = {**os.environ, **QUICK_JAVA}
        job = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True, env=environment)
    try:
        # Given tasks that are writing, and cannot get on
        staged = lake / "events" / "data"
        wait_until(lambda: list(staged.rglob("*.parquet")) or job.poll() is not None, within=120)
        server.process.send_signal(signal.SIGSTOP)
        assert job.poll() is None, log.read_text()
        assert not all(is_whole(path) for path in staged.rglob("*.parquet"))
        assert beyond_loopback(job.pid) == set()
        # When one worker and its executor are gone
        os.killpg(workers[0].pid, signal.SIGKILL)
        server.process.send_signal(signal.SIGCONT)
        # Then the job ends well: the audit, on the worker that is left, finds nothing wrong
        assert job.wait(240) == 0, (tmp_path / "job.json").read_text() + log.read_text()[-3000:]
    finally:
        server.process.send_signal(signal.SIGCONT)
        end(job)
    # And every row is there once
    assert watermark(client, "events") >= newest
    assert differences(client, lake) == []
