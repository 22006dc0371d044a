"""The examples run as they stand: over Spark Connect, and as a project of `spark-pipelines`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from penstock.cli.pipeline import make_package
from penstock.pipeline.client import PipelineClient
from penstock.testing import RunningServer, start_server, wait_until
from tests.spark.filling import QUICK_JAVA, publish
from tests.spark.test_standalone import HOME, end
from tests.spark.test_submit import other_python

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDERS = [("pen", 2.5), ("desk", 250), ("pen", 3.5), ("lamp", 101), ("chair", 100)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with some orders in it."""
    with start_server(tmp_path_factory.mktemp("orders") / "data") as running:
        client = PipelineClient(running.url, running.admin_token)
        for number, (item, price) in enumerate(ORDERS):
            publish(client, f"/orders/{number % 2}", [json.dumps({"item": item, "price": price}).encode()])
        yield running


@contextmanager
def connect_server(folder: Path, python_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server that has nothing of Penstock's but what is on its *python_path*."""
    log = folder / "connect.log"
    command = [str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in (
        "spark.connect.grpc.binding.address=127.0.0.1",
        "spark.connect.grpc.binding.port=0",
        "spark.driver.host=127.0.0.1",
        "spark.ui.enabled=false",
        "spark.sql.shuffle.partitions=2",
        f"spark.sql.warehouse.dir={folder / 'warehouse'}",
    ):
        command += ["--conf", setting]
    environment = {**other_python(folder), **QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(python_path)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--master", "local[2]", "spark-internal"],
            stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
    try:
        found = wait_until(lambda: re.search(r"started at: \S*?:(\d+)", log.read_text()), within=90)
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        end(process)


def run(server: RunningServer, folder: Path, *command: str, said: str = "") -> str:
    """What a program prints. It must end well, or have *said* that it did."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": server.admin_token, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert said in done.stdout + done.stderr if said else done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def events(server: RunningServer, stream: str) -> list[dict[str, Any]]:
    client = PipelineClient(server.url, server.admin_token)
    return [json.loads(entry["data"]) for entry in client.call("GET", "/v1/read", {"stream": stream})["entries"]]


def test_spark_connect_and_spark_pipelines(server: RunningServer, tmp_path: Path) -> None:
    project, installed = tmp_path / "project", tmp_path / "installed.zip"
    shutil.copytree(EXAMPLES / "spark_pipelines", project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///var/lib/penstock-orders", (tmp_path / "storage").as_uri()))
    totals = [{"stream": "/orders/0", "count": 3}, {"stream": "/orders/1", "count": 2}]
    make_package(tmp_path / "penstock-spark.zip")

    with connect_server(tmp_path, installed) as connect:
        # A client of Spark Connect brings the package with it
        assert not installed.exists()
        said = run(server, tmp_path, sys.executable, str(EXAMPLES / "spark_connect.py"), connect)
        # and for a pipeline it is installed where Spark runs
        make_package(installed)
        # After the end of a run with Python workers the client of PySpark 4.3.0 stumbles over their accumulators.
        command = (str(HOME / "bin" / "spark-pipelines"), "--remote", connect, "run")
        run(server, project, *command, said="Run is COMPLETED.")

    assert [json.loads(line) for line in said.splitlines()] == totals
    assert events(server, "/totals") == totals
    large = events(server, "/alerts/large")
    assert sorted((one["item"], one["price"]) for one in large) == [("desk", 250), ("lamp", 101)]
    prices = parquet.read_table(tmp_path / "warehouse" / "prices").to_pylist()
    assert {row["item"]: row["spent"] for row in prices} == {"pen": 6, "desk": 250, "lamp": 101, "chair": 100}
