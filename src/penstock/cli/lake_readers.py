"""The lines that read the lake with other programs, complete for one server. The token comes from PENSTOCK_TOKEN."""

from __future__ import annotations

from textwrap import indent
from typing import Final

from penstock.wire.table_columns import DELIVERY_OUTCOMES, outcomes_sql

_DUCKDB: Final = """\
duckdb -cmd "INSTALL iceberg; LOAD iceberg;
  CREATE SECRET penstock (TYPE iceberg, TOKEN '$PENSTOCK_TOKEN');
  ATTACH 'penstock' AS lake (TYPE iceberg, ENDPOINT '{url}/iceberg', SECRET penstock);
  CREATE TEMP VIEW {view} AS
{select};
  SELECT stream, count(*) FROM lake.penstock.events GROUP BY ALL ORDER BY 2 DESC LIMIT 10;"
"""

_POLARS: Final = """\
# pip install polars 'pyiceberg[pyarrow]'
import os

import polars
from pyiceberg.catalog import load_catalog

lake = load_catalog("penstock", type="rest", uri="{url}/iceberg", token=os.environ["PENSTOCK_TOKEN"])
table = lake.load_table("penstock.events")
store = {{name: value for name, value in table.io.properties.items() if name.startswith("s3.")}}
events = polars.scan_iceberg(table, storage_options=store)
print(events.group_by("stream").len().sort("len", descending=True).head(10).collect())
"""

_SPARK: Final = """\
spark-sql \\
  --packages org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0{bundle} \\
  --conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog \\
  --conf spark.sql.catalog.lake.type=rest \\
  --conf spark.sql.catalog.lake.uri={url}/iceberg \\
  --conf spark.sql.catalog.lake.token=$PENSTOCK_TOKEN{io} \\
  -e 'SELECT stream, count(*) FROM lake.penstock.events GROUP BY 1 ORDER BY 2 DESC LIMIT 10'
"""
_SPARK_S3: Final = {
    "bundle": ",org.apache.iceberg:iceberg-aws-bundle:1.10.0",
    "io": " \\\n  --conf spark.sql.catalog.lake.io-impl=org.apache.iceberg.aws.s3.S3FileIO",
}

_TRINO: Final = """\
# etc/catalog/lake.properties; then: SELECT count(*) FROM lake.penstock.events
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={url}/iceberg
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.token=${{ENV:PENSTOCK_TOKEN}}
{files}
"""
_TRINO_S3: Final = "iceberg.rest-catalog.vended-credentials-enabled=true\nfs.native-s3.enabled=true"
_TRINO_FOLDER: Final = "fs.hadoop.enabled=true"

_SNOWFLAKE: Final = """\
{warning}snow sql -D "token=$PENSTOCK_TOKEN" -q "
  CREATE OR REPLACE CATALOG INTEGRATION penstock
    CATALOG_SOURCE = ICEBERG_REST TABLE_FORMAT = ICEBERG CATALOG_NAMESPACE = 'penstock'
    REST_CONFIG = (CATALOG_URI = '{url}/iceberg')
    REST_AUTHENTICATION = (TYPE = BEARER BEARER_TOKEN = '<% token %>')
    ENABLED = TRUE;
  CREATE OR REPLACE ICEBERG TABLE events
    CATALOG = 'penstock' CATALOG_TABLE_NAME = 'events' EXTERNAL_VOLUME = 'lake' AUTO_REFRESH = TRUE;"
"""
_WARNING: Final = """\
# Snowflake reaches neither a folder nor an address without https: it needs the lake on S3 (an external volume named
# lake), and this server behind a public https address.
"""

NOT_RUN: Final = ("spark", "trino", "snowflake")
"""Readers whose lines follow their manuals: no test runs them."""

READERS: Final = {
    "duckdb": _DUCKDB, "polars": _POLARS, "spark": _SPARK, "trino": _TRINO, "snowflake": _SNOWFLAKE,
}  # fmt: skip


def lines_for(reader: str, url: str, lake: str) -> str:
    """The lines that read the lake at *lake*, whose catalog is at *url*, with one of `READERS`."""
    s3 = lake.startswith("s3://")
    fitting = {
        "bundle": _SPARK_S3["bundle"] if s3 else "",
        "io": _SPARK_S3["io"] if s3 else "",
        "files": _TRINO_S3 if s3 else _TRINO_FOLDER,
        "view": DELIVERY_OUTCOMES,
        "select": indent(outcomes_sql("lake.penstock."), "    "),
        "warning": "" if s3 and url.startswith("https://") else _WARNING,
    }
    note = "# written by the manual, not run by Penstock's tests\n" if reader in NOT_RUN else ""
    return note + READERS[reader].format(url=url, **fitting).rstrip("\n")
