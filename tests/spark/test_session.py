"""The session: what it listens on, and how it is set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.cli.pipeline import make_package
from tests.spark.sockets import beyond_loopback, listening


def test_spark_listens_on_the_loopback_address_only(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10

    assert listening(os.getpid())
    assert beyond_loopback(os.getpid()) == set()


def test_a_socket_beyond_loopback_would_be_found() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:  # noqa: S104 - the sabotage
        assert beyond_loopback(os.getpid()) == {("0.0.0.0", listener.getsockname()[1])}  # noqa: S104


def test_the_session_is_set_as_the_lake_needs_it(spark: SparkSession) -> None:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
    }

    assert {name: spark.conf.get(name) for name in settings} == settings
    assert spark.sparkContext.uiWebUrl is None


ALONE = """
import importlib
import sys
import zipfile
sys.path[:0] = sys.argv[1:]
import pyspark_penstock
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
from penstock.pipeline.jobs import archive
ours = sorted({"msgspec", "uvloop", "httptools", "typer", "cryptography"} & set(sys.modules))
print(pyspark_penstock.DefaultSource.name(), ours, "penstock-spark.zip" in archive.__file__)
"""


def test_the_package_for_workers_needs_pyarrow_and_pyspark_only(tmp_path: Path) -> None:
    package = tmp_path / "penstock-spark.zip"
    make_package(package)
    # Without `site` nobody reads the .pth file that leads to this folder's source.
    command = [sys.executable, "-S", "-c", ALONE, str(package), sysconfig.get_path("purelib")]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.stdout == "penstock [] True\n", done.stderr
