"""The ten questions of docs/lake.md, asked of Spark: it gives the answers of the page, as DuckDB does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.api.auth import open_keys
from penstock.errors import NotFound
from penstock.pipeline.lake_views import register_lake
from penstock.testing import RunningServer
from penstock.wire.lake_files import LakeFile
from penstock.wire.table_columns import DELIVERY_OUTCOMES, TABLES, TEXT, Column
from tests.api.client import publish
from tests.api.lake_rig import archive, opened, publish_record, server_with_lake
from tests.api.test_iceberg import DAY, rows_of
from tests.lake_shop import ORDERS, QUESTIONS, make_lake, shown, write_log


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows the tables of the shop's lake."""
    folder = tmp_path_factory.mktemp("questions")
    write_log(folder / "data")
    with server_with_lake(folder) as server:
        make_lake(server, str(folder / "lake"))
        token = open_keys(server.data).issue("analyst", grants=("export",))
        assert sorted(register_lake(spark, server.url, token)) == sorted((*TABLES, DELIVERY_OUTCOMES))
        yield spark
    for name in (*TABLES, DELIVERY_OUTCOMES):
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize(("title", "sql", "expected"), QUESTIONS, ids=[title for title, *_ in QUESTIONS])
def test_spark_gives_the_documented_answers(session: SparkSession, title: str, sql: str, expected: str) -> None:
    assert shown(session.sql(sql).toArrow()) == expected, title


def test_a_server_without_a_lake_says_so(spark: SparkSession, server: RunningServer) -> None:
    with pytest.raises(NotFound, match="no lake"):
        register_lake(spark, server.url, server.admin_token)


def test_a_session_reads_the_tables_as_they_were_when_it_asked(session: SparkSession, tmp_path: Path) -> None:
    told = session.sql("SELECT count(*) AS n FROM events WHERE stream = '/orders' AND kind = 'data'")
    assert told.first()["n"] == ORDERS


def test_a_column_that_was_added_is_null_in_older_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = spark.newSession()  # its views are its own
    with server_with_lake(tmp_path) as server:
        publish(server, "/orders", b"one")
        upto = archive(server, tmp_path / "lake")
        tenant = Column("tenant", TEXT, True, "", "", "whose")
        monkeypatch.setitem(TABLES, "events", (*TABLES["events"], tenant))
        written = opened(server, tmp_path / "lake")
        added = written.write(LakeFile(upto, upto + 2, DAY, "events"), rows_of("events", upto, upto + 2))
        written.prepare("events", [added])
        publish_record(server, written, "events")

        register_lake(own, server.url, server.admin_token)
        told = {row.id: row.tenant for row in own.sql("SELECT id, tenant FROM events").collect()}

    assert {told[id] for id in told if id <= upto} == {None}
    assert [told[upto + 1], told[upto + 2]] == [f"t{upto + 1}", f"t{upto + 2}"]
