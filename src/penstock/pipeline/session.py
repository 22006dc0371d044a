"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.iceberg.files import COMPRESSION, GROUP_BYTES

LOCAL: Final = "local[2]"

_ALWAYS: Final = {
    # What is written must not depend on the machine it is written on.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": COMPRESSION,
    "spark.hadoop.parquet.block.size": str(GROUP_BYTES),
    "spark.sql.shuffle.partitions": "4",
    # Off by default, and a reader that takes filters then fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # A driver that is idle gives memory back: 140 MB less than with the JVM's usual collector, which keeps it and is
    # quicker only with far larger heaps.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Days are in the path, not in the files: nothing is to be guessed from names.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def open_session(
    master: str = LOCAL, *, name: str = "penstock", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The process's Spark session, made if there is none. *settings* win over ours.

    Listens on the loopback address only, unless the master is elsewhere, and shows no pages. It does not know
    `format("penstock")` yet: our own jobs do without, and `register` takes two seconds. Under `spark-submit`
    the master, and the driver's address if one was given, are those that were given there.
    """
    submitted = _submitted()
    master = submitted.get("spark.master", master)
    host = submitted.get("spark.driver.host", own_address(master))
    if not submitted:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = host
    builder = SparkSession.builder.appName(name).master(master)
    # Without these two Spark listens on every address of the machine.
    listening = {"spark.driver.host": host, "spark.driver.bindAddress": host}
    for key, value in {**_ALWAYS, **listening, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _submitted() -> dict[str, str]:
    """What was given to `spark-submit`; nothing when we were started otherwise."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # before this, SparkConf is empty
    return dict(SparkConf().getAll())


def own_address(master: str) -> str:
    """The address of ours that workers of *master* can reach: loopback, unless the master is elsewhere."""
    place = urlsplit(master)
    if place.scheme != "spark" or not place.hostname:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((place.hostname, place.port or 7077))
        return str(probe.getsockname()[0])
