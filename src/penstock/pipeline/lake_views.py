"""The lake's tables as views of a Spark session, without any jar: `SELECT … FROM deliveries` then works in it.

    from penstock.pipeline.lake_views import register_lake

    register_lake(spark, "http://127.0.0.1:8800", token)
    spark.sql("SELECT door, state, count(*) FROM deliveries GROUP BY ALL").show()

The driver asks the server for the present state of each table, and reads the metadata; Spark reads the data files. A
view is the state of that moment: call it again for a later one.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.errors import NotFound
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.jobs import Workplace
from penstock.pipeline.lake import open_lake
from penstock.wire.lake_files import TYPED, shown_name, tables_of
from penstock.wire.table_columns import DELIVERY_OUTCOMES, READ_BY_OUTCOMES, outcomes_sql


def register_lake(spark: SparkSession, url: str, token: str, lake: str = "") -> list[str]:
    """Make each table a temporary view, those included that are still empty, and `delivery_outcomes` of two of them.

    Returns the names of all. *token* needs the grant `export`. *lake* is where it lies, if not where the server says.
    """
    client = PipelineClient(url, token)
    found = lake or str(client.call("GET", "/v1/pipeline")["lake"])
    if not found:
        raise NotFound("lake", url, remedy="It is there from the pipeline's first archive on: ./penstock up.")
    place = Workplace(spark, client, open_lake(found))
    declared = {table.key for table in client.typed_tables()}
    names = [name for name in place.records() if not name.startswith(TYPED) or name in declared]
    tables = [table for name in names for table in tables_of(name)]
    for table in tables:
        place.read(table, place.files(table)).createOrReplaceTempView(shown_name(table))
    views = [shown_name(table) for table in tables]
    if DELIVERY_OUTCOMES not in views and set(READ_BY_OUTCOMES) <= set(views):
        spark.sql(outcomes_sql()).createOrReplaceTempView(DELIVERY_OUTCOMES)
        views.append(DELIVERY_OUTCOMES)
    return views
