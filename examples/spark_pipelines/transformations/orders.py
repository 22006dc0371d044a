"""Orders as a table that each run adds the new ones to, prices by item, and large orders sent back as events."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline import register

spark = SparkSession.active()
register(spark)
SERVER = {"url": os.environ["PENSTOCK_URL"], "token": os.environ["PENSTOCK_TOKEN"]}


@dp.table
def orders() -> DataFrame:
    """One row an order, its body taken apart."""
    log = spark.readStream.format("penstock").options(**SERVER, streams="/orders/*", consumer="orders-table").load()
    order = log.where("kind = 'data'").selectExpr("id", "time", "parse_json(CAST(body AS STRING)) AS order")
    return order.selectExpr("id", "time", "order:item::string AS item", "order:price::decimal(10,2) AS price")


@dp.materialized_view
def prices() -> DataFrame:
    """What was spent on each item."""
    return spark.read.table("orders").groupBy("item").agg(F.sum("price").alias("spent"))


dp.create_sink("alerts", "penstock", {**SERVER, "writer": "large-orders", "stream": "/alerts/large"})


@dp.append_flow(target="alerts")
def large_orders() -> DataFrame:
    """An event for each order over 100."""
    large = spark.readStream.table("orders").where("price > 100")
    return large.selectExpr("to_json(struct(id, item, price)) AS body")
