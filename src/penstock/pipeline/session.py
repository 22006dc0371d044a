"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from penstock.pipeline import register

LOCAL: Final = "local[2]"

_ALWAYS: Final = {
    # What is written must not depend on the machine it is written on.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # Row groups of this size are what a cold read opens: with the usual 128 MiB it would read a whole day.
    "spark.hadoop.parquet.block.size": str(8 * 1024 * 1024),
    "spark.sql.shuffle.partitions": "4",
    # Off by default, and a reader that takes filters then fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Days are in the path, not in the files: nothing is to be guessed from names.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def open_session(
    master: str = LOCAL, *, name: str = "penstock", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The process's Spark session, made if there is none. *settings* win over ours.

    Listens on the loopback address only, unless the master is elsewhere, and shows no pages. Under `spark-submit`
    the master is the one that was given there.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if not submitted:
        host = own_address(master)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = host
        # Without these two Spark listens on every address of the machine.
        builder = builder.master(master).config("spark.driver.host", host).config("spark.driver.bindAddress", host)
    for key, value in {**_ALWAYS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def own_address(master: str) -> str:
    """The address of ours that workers of *master* can reach: loopback, unless the master is elsewhere."""
    place = urlsplit(master)
    if place.scheme != "spark" or not place.hostname:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((place.hostname, place.port or 7077))
        return str(probe.getsockname()[0])
