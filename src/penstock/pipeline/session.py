"""The one place that makes a Spark session."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from penstock.errors import InputInvalid
from penstock.iceberg.files import COMPRESSION, GROUP_BYTES

LOCAL: Final = "local[2]"

_ALWAYS: Final = {
    # What is written must not depend on the machine it is written on.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": COMPRESSION,
    "spark.hadoop.parquet.block.size": str(GROUP_BYTES),
    "spark.sql.shuffle.partitions": "4",
    # Spark puts small tasks of a shuffle together up to this. The usual 64 MB are millions of records, as they are
    # alike and compress well, and a task holds its rows in memory.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    # Off by default; with it less is exported than is read.
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
    """The process's Spark session, made if there is none.

    *settings* win over what was given to Spark itself (`given_settings`), and that wins over ours. It does not know
    `format("penstock")` yet: our own jobs do without, and `register` takes two seconds. Under `spark-submit` the
    master is the one that was given there.
    """
    given = given_settings()
    if is_submitted():
        master = given.get("spark.master", master)
    said = {**given, **(settings or {})}
    made = {**settings_for(master, said, os.environ), **(settings or {})}
    if not is_submitted():
        _set_environment({**said, **made}, near=master.startswith("local") or _is_loopback(made))
    builder = SparkSession.builder.master(master)
    if "spark.app.name" not in given:
        builder = builder.appName(name)
    for key, value in made.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _set_environment(settings: Mapping[str, str], *, near: bool) -> None:
    """Say what Spark takes from the environment only, where the user does not."""
    # Workers on this machine have what we have. Elsewhere they have a python3 of their own.
    python = settings.get("spark.pyspark.python", sys.executable if near else "")
    if python:
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if near and "spark.driver.host" in settings:
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.host"])


def settings_for(master: str, given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Our settings of a session, without those that were *given*; where the driver is, is given by any of its names."""
    where = {} if environment.keys() & _ADDRESSES.keys() or given.keys() & _ADDRESSES.values() else listening(master)
    return {key: value for key, value in {**_ALWAYS, **where}.items() if key not in given}


_ADDRESSES: Final = {
    "SPARK_LOCAL_IP": "spark.driver.bindAddress",
    "SPARK_LOCAL_HOSTNAME": "spark.driver.host",
    "SPARK_PUBLIC_DNS": "spark.driver.host",
}
"""What a user sets to say himself where the driver is, in the environment and as settings."""


def listening(master: str) -> dict[str, str]:
    """Where the driver listens, so that the workers of *master* reach it, and others as little as possible.

    - `local`: the loopback address. Without this Spark listens on every address of the machine.
    - `spark://` and `k8s://`: the address of ours on the way to the master, or to the API server.
    - `yarn`: nobody is named in it. Spark takes the address that this machine's name stands for, and no other.
    """
    if master.startswith("yarn"):
        return {}
    place = _place(master)
    host = own_address(*place) if place else "127.0.0.1"
    return {"spark.driver.host": host, "spark.driver.bindAddress": host}


def _place(master: str) -> tuple[str, int] | None:
    """Host and port of a master that is a server: of `spark://one:7077,two:7077` the first."""
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s"):
        return None
    plain = rest if "://" in rest else "https://" + rest  # Spark's own rule for k8s://
    address = urlsplit(plain.partition(",")[0])
    try:
        port = address.port or (7077 if kind == "spark" else 80 if address.scheme == "http" else 443)
    except ValueError:
        port = 0
    if not address.hostname or not port:
        raise InputInvalid("--master", f"{master!r} names no host and port", remedy="Write it like spark://HOST:7077.")
    return address.hostname, port


def own_address(host: str, port: int) -> str:
    """The address of ours that is on the way to a server."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # nothing is sent
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError as error:
        why = error.strerror or str(error)
        remedy = "Look at the address, or say where the driver is: --conf spark.driver.host=ADDRESS."
        raise InputInvalid("--master", f"there is no way to {host}: {why}", remedy=remedy) from None
    return f"[{own}]" if ":" in own else own


def _is_loopback(made: Mapping[str, str]) -> bool:
    return made.get("spark.driver.host", "").startswith(("127.", "[::1]"))


# ── what was given ─────────────────────────────────────────────────────────────────────────────

_SUBMIT: Final = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--executor-memory": "spark.executor.memory",
    "--py-files": "spark.submit.pyFiles",
}


def is_submitted() -> bool:
    """Whether `spark-submit` has started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def given_settings() -> dict[str, str]:
    """What the user gave to Spark: by `spark-submit`, by PYSPARK_SUBMIT_ARGS, or in spark-defaults.conf."""
    if is_submitted():
        SparkContext._ensure_initialized()  # before this, SparkConf is empty
        return dict(SparkConf().getAll())
    folder = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    defaults = Path(folder, "spark-defaults.conf")
    given = parse_defaults(defaults.read_text()) if defaults.is_file() else {}
    return {**given, **parse_submit_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))}


def parse_defaults(text: str) -> dict[str, str]:
    """The settings of a spark-defaults.conf: a name and a value on each line, with white space, `=` or `:` between."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!"]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def parse_submit_arguments(text: str) -> dict[str, str]:
    """The settings among the arguments of a `spark-submit`, as PYSPARK_SUBMIT_ARGS has them."""
    given: dict[str, str] = {}
    words = iter(shlex.split(text))
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--conf", "-c") or name in _SUBMIT:
            value = value if equals else next(words, "")
            key, _, setting = value.partition("=") if name not in _SUBMIT else (_SUBMIT[name], "", value)
            given[key] = setting
    return given
