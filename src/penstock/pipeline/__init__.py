"""The data pipeline on Spark. docs/pipeline.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to *spark*.

    Where `pyspark_penstock` can be imported Spark finds the source by itself; this is for where it cannot.
    """
    from penstock.pipeline.source import PenstockSource

    spark.dataSource.register(PenstockSource)
