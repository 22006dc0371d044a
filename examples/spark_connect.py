"""Counts orders by stream over Spark Connect, and writes the totals back as events.

    ./penstock pipeline package penstock-spark.zip
    PENSTOCK_URL=http://127.0.0.1:8800 PENSTOCK_TOKEN=… python examples/spark_connect.py sc://127.0.0.1:15002

The Spark server needs nothing of Penstock's: the package goes with the session. Run it again, and nothing is added
for a batch that was written before.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from penstock.pipeline import register

PACKAGE = "penstock-spark.zip"


def main(remote: str, batch: str = "1") -> None:
    """Count, print and publish."""
    server = {"url": os.environ["PENSTOCK_URL"], "token": os.environ["PENSTOCK_TOKEN"]}
    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.addArtifacts(PACKAGE, pyfile=True)
    register(spark)
    orders = spark.read.format("penstock").options(**server, streams="/orders/*").load().where("kind = 'data'")
    totals = orders.groupBy("stream").count().selectExpr("to_json(struct(stream, count)) AS body")
    for row in totals.orderBy("body").collect():
        print(row.body)  # noqa: T201 - the example's output
    writing = totals.coalesce(1).sortWithinPartitions("body").write.format("penstock").mode("append")
    writing.options(**server, writer="totals", stream="/totals", batch=batch).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
