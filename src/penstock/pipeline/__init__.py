"""The data pipeline on Spark. docs/pipeline.md."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.wire.lake_files import STORE_KEYS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to *spark*, and lend the driver's keys for object stores to its tasks.

    Where `pyspark_penstock` can be imported Spark finds the source by itself; this is for where it cannot.
    """
    from penstock.pipeline.source import PenstockSource

    lend_keys(spark)
    spark.dataSource.register(PenstockSource)


def lend_keys(spark: SparkSession) -> None:
    """Lend the driver's keys for an object store to the tasks, as Spark lends its own settings."""
    keys = {name: value for name, value in os.environ.items() if name.startswith(STORE_KEYS)}
    context = getattr(spark, "_sc", None)  # a client of Spark Connect has none, and its server's keys count
    if context is not None:
        context.environment.update(keys)
