"""The catalog: others read every table by name with a token, see each commit at once, and change nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from penstock.api.auth import open_keys
from penstock.iceberg.files import arrow_schema
from penstock.iceberg.sql import ask as ask_sql
from penstock.testing import RunningServer, S3Server, start_server
from penstock.testing.seaweedfs import READER
from penstock.wire import table_columns
from penstock.wire.lake_files import RECORDS, LakeFile
from penstock.wire.table_columns import TABLES, TEXT, Column
from tests.api.client import Reply, ask, publish
from tests.api.lake_rig import archive, export, opened, publish_record, server_with_lake, value_of
from tests.engines.lake_files import JOBS, NOW_MS, WrittenLake
from tests.lake_readers import (
    DuckDb,
    DuckDbError,
    by_polars,
    by_pyiceberg,
    open_catalog,
    sorted_rows,
    start_duckdb,
)

TABLE = "/iceberg/v1/namespaces/penstock/tables"
DAY = "2026-11-15"


@pytest.fixture(autouse=True)
def planning_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars would rather have a package of its own for it, and warns."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@dataclass
class Lake:
    """A server with a lake whose tables are committed by hand."""

    server: RunningServer
    written: WrittenLake
    token: str  # of somebody with the grant
    stranger: str  # of somebody without it

    def commit(self, table: str, lo: int, hi: int) -> None:
        """Add the rows *lo* + 1 to *hi* to a table, and let everybody see them."""
        written = self.written.write(LakeFile(lo, hi, DAY, table), rows_of(table, lo, hi))
        self.written.prepare(table, [written], now_ms=int(time.time() * 1000))
        publish_record(self.server, self.written, JOBS[table])

    def ask(self, method: str, path: str, **more: Any) -> Reply:
        return ask(self.server, method, path, token=more.pop("token", self.token), **more)

    @property
    def catalog(self) -> Catalog:
        return open_catalog(self.server.url, self.token)


def rows_of(table: str, lo: int, hi: int) -> pa.Table:
    """Rows that differ in every column."""
    ids = range(lo + 1, hi + 1)
    values: dict[str, list[Any]] = {
        "int64": list(ids), "int32": [1] * len(ids), "utf8": [f"t{id}" for id in ids],
        "timestamp[us, UTC]": [NOW_MS * 1000 + id for id in ids], "binary": [b"b%d" % id for id in ids],
    }  # fmt: skip
    made = pa.table({one.name: values[one.type] for one in table_columns.TABLES[table]})
    return made.cast(arrow_schema(table))


def lake_beside(server: RunningServer, place: Path | str) -> Lake:
    keys = open_keys(server.data)
    token, stranger = keys.issue("analyst", grants=("export",)), keys.issue("reader", subscribe=(">",))
    return Lake(server, WrittenLake(place), token, stranger)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with server_with_lake(tmp_path) as server:
        yield lake_beside(server, tmp_path / "lake")


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDb]:
    with start_duckdb() as database:
        yield database


@pytest.fixture
def attached(lake: Lake, duckdb: DuckDb) -> Iterator[DuckDb]:
    duckdb.attach(lake.server.url, lake.token)
    yield duckdb
    duckdb.sql("DETACH lake")


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_every_reader_reads_every_table_by_its_name(lake: Lake, attached: DuckDb, tmp_path: Path) -> None:
    for table in TABLES:
        lake.commit(table, 0, 7)
        lake.commit(table, 7, 9)
    readers: dict[str, Callable[[str], pa.Table]] = {
        "pyiceberg": lambda table: by_pyiceberg(lake.catalog, table),
        "polars": lambda table: by_polars(lake.catalog, table),
        "duckdb": lambda table: attached.table(f"SELECT * FROM lake.penstock.{table}", tmp_path),
    }

    assert sorted(name for _, name in lake.catalog.list_tables("penstock")) == sorted(TABLES)
    assert sorted(row[2] for row in attached.sql("SHOW ALL TABLES")) == sorted(TABLES)
    for table in TABLES:
        names = arrow_schema(table).names
        expected = sorted_rows(rows_of(table, 0, 9), names)
        for reader, read in readers.items():
            assert sorted_rows(read(table), names) == expected, (reader, table)


def test_each_commit_is_seen_at_once(lake: Lake, attached: DuckDb) -> None:
    count = "SELECT count(*)::INT, max(id)::INT FROM lake.penstock.events"
    for number in range(1, 5):
        lake.commit("events", number - 1, number)

        assert attached.sql(count) == [[number, number]]
        assert by_pyiceberg(lake.catalog, "events").num_rows == number
        assert by_polars(lake.catalog, "events").num_rows == number


def test_rows_that_were_replaced_are_read_once(lake: Lake, attached: DuckDb) -> None:
    small = [lake.written.write(LakeFile(n, n + 1, DAY, "events"), rows_of("events", n, n + 1)) for n in range(3)]
    lake.written.prepare("events", small)
    large = lake.written.write(LakeFile(0, 3, DAY, "events"), rows_of("events", 0, 3))
    lake.written.prepare("events", [large], small)
    publish_record(lake.server, lake.written, "events")

    assert attached.sql("SELECT id::INT FROM lake.penstock.events ORDER BY id") == [[1], [2], [3]]
    assert by_pyiceberg(lake.catalog, "events").num_rows == by_polars(lake.catalog, "events").num_rows == 3


def test_what_the_log_has_is_what_others_read(lake: Lake, attached: DuckDb, tmp_path: Path) -> None:
    for number in range(30):
        publish(lake.server, f"/orders/{number % 3}", b'{"n":%d}' % number)
    upto = archive(lake.server, tmp_path / "lake")
    names = arrow_schema("events").names

    expected = sorted_rows(export(lake.server, 0, upto), names)

    assert sorted_rows(attached.table("SELECT * FROM lake.penstock.events", tmp_path), names) == expected
    assert sorted_rows(by_pyiceberg(lake.catalog, "events"), names) == expected


def test_the_past_is_read_by_snapshot_and_by_time(lake: Lake, attached: DuckDb) -> None:
    for number in range(1, 4):
        lake.commit("events", number - 1, number)
    table = lake.catalog.load_table("penstock.events")
    second = table.snapshots()[1]
    moment = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    assert table.scan(snapshot_id=second.snapshot_id).to_arrow().num_rows == 2
    then = table.snapshot_as_of_timestamp(second.timestamp_ms)
    assert then is not None
    assert then.snapshot_id == second.snapshot_id
    assert polars.scan_iceberg(table, snapshot_id=second.snapshot_id).collect().height == 2
    by_version = f"SELECT count(*)::INT FROM lake.penstock.events AT (VERSION => {second.snapshot_id})"
    assert attached.sql(by_version) == [[2]]
    by_time = f"SELECT count(*)::INT FROM lake.penstock.events AT (TIMESTAMP => TIMESTAMP '{moment}')"
    assert attached.sql(by_time) == [[2]]


def test_a_column_that_was_added_is_null_in_older_rows(
    lake: Lake, attached: DuckDb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    upto = archive(lake.server, tmp_path / "lake")
    tenant = Column("tenant", TEXT, True, "", "", "whose")
    monkeypatch.setitem(table_columns.TABLES, "events", (*TABLES["events"], tenant))
    lake.written = opened(lake.server, tmp_path / "lake")
    lake.commit("events", upto, upto + 2)

    names = [*(column.name for column in table_columns.TABLES["events"])]
    for read in (
        by_pyiceberg(lake.catalog, "events"),
        by_polars(lake.catalog, "events"),
        attached.table("SELECT * FROM lake.penstock.events", tmp_path),
        ask_sql(str(tmp_path / "lake"), {"events": lake.written.tables["events"].location}, "FROM events").table,
    ):
        assert set(names) <= set(read.column_names)
        told = {row["id"]: row["tenant"] for row in read.to_pylist()}
        assert {told[id] for id in told if id <= upto} == {None}
        assert [told[upto + 1], told[upto + 2]] == [f"t{upto + 1}", f"t{upto + 2}"]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


def test_clients_are_refused_when_they_write(lake: Lake, attached: DuckDb) -> None:
    lake.commit("activity", 0, 3)
    before = value_of(lake.server, "lake/rollup")
    table = lake.catalog.load_table("penstock.activity")

    writes: list[Callable[[], object]] = [
        lambda: table.append(rows_of("activity", 3, 4)),
        lambda: table.delete(),
        lambda: lake.catalog.create_table("penstock.mine", Schema(NestedField(1, "a", LongType()))),
        lambda: lake.catalog.drop_table("penstock.activity"),
        lambda: lake.catalog.create_namespace("mine"),
        lambda: attached.sql("INSERT INTO lake.penstock.activity SELECT * FROM lake.penstock.activity"),
        lambda: attached.sql("DELETE FROM lake.penstock.activity"),
        lambda: attached.sql("CREATE TABLE lake.penstock.mine (a INT)"),
        lambda: attached.sql("DROP TABLE lake.penstock.activity"),
        lambda: attached.sql("CREATE SCHEMA lake.mine"),
    ]
    for write in writes:
        with pytest.raises(Exception, match=r"(?i)read-only|not support|does not support|405|not been implemented"):
            write()
    assert value_of(lake.server, "lake/rollup") == before
    assert attached.sql("SELECT count(*)::INT FROM lake.penstock.activity") == [[3]]


def test_whatever_would_change_something_is_refused_in_icebergs_words(lake: Lake) -> None:
    lake.commit("events", 0, 1)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for path in ("namespaces", "namespaces/penstock/tables/events", "oauth/tokens", "transactions/commit"):
            answer = lake.ask(method, f"/iceberg/v1/{path}", body=b"{}")

            assert answer.status == 405
            assert answer.json["error"]["type"] == "UnsupportedOperationException"
            assert "read-only" in answer.json["error"]["message"]
    assert lake.ask("GET", f"{TABLE}/events").status == 200


def test_only_what_is_answered_is_promised(lake: Lake) -> None:
    lake.commit("events", 0, 1)
    promised = lake.ask("GET", "/iceberg/v1/config", warehouse="penstock").json["endpoints"]

    assert {endpoint.split()[0] for endpoint in promised} == {"GET", "HEAD"}
    for endpoint in promised:
        method, path = endpoint.split()
        known = path.replace("/{prefix}", "").format(namespace="penstock", table="events")
        assert lake.ask(method, f"/iceberg{known}").status == (204 if method == "HEAD" else 200)


def test_nobody_reads_without_the_grant(lake: Lake, duckdb: DuckDb) -> None:
    lake.commit("events", 0, 1)
    for path in ("/iceberg/v1/config", "/iceberg/v1/namespaces", TABLE, f"{TABLE}/events"):
        refused, unknown = lake.ask("GET", path, token=lake.stranger), lake.ask("GET", path, token=None)
        assert (refused.status, refused.json["error"]["type"]) == (403, "ForbiddenException")
        assert (unknown.status, unknown.json["error"]["type"]) == (401, "NotAuthorizedException")
    with pytest.raises(ForbiddenError):
        open_catalog(lake.server.url, lake.stranger)
    with pytest.raises(UnauthorizedError):
        open_catalog(lake.server.url, "nonsense")
    with pytest.raises(DuckDbError, match=r"(?i)forbidden|403"):
        duckdb.attach(lake.server.url, lake.stranger)


def test_what_is_not_there_is_said_in_icebergs_words(lake: Lake) -> None:
    lake.commit("events", 0, 1)
    for path, kind in (
        (f"{TABLE}/nothing", "NoSuchTableException"),
        ("/iceberg/v1/namespaces/mine", "NoSuchNamespaceException"),
        ("/iceberg/v1/namespaces/mine/tables", "NoSuchNamespaceException"),
        ("/iceberg/v1/namespaces/mine/tables/events", "NoSuchNamespaceException"),
    ):
        answer = lake.ask("GET", path)
        assert (answer.status, answer.json["error"]["type"], answer.json["error"]["code"]) == (404, kind, 404)
    assert lake.ask("HEAD", f"{TABLE}/nothing").status == 404
    assert lake.ask("GET", "/iceberg/v1/namespaces", parent="penstock").json == {"namespaces": []}
    assert lake.ask("GET", "/iceberg/v2/anything").json["error"]["code"] == 404
    assert not lake.catalog.table_exists("penstock.nothing")
    with pytest.raises(NoSuchTableError):
        lake.catalog.load_table("penstock.nothing")


def test_a_server_without_a_lake_says_so(server: RunningServer) -> None:
    assert ask(server, "GET", "/iceberg/v1/namespaces").json == {"namespaces": []}
    answer = ask(server, "GET", TABLE)
    assert answer.status == 404
    assert "lake.url" in answer.json["error"]["message"]


def test_a_table_whose_metadata_is_gone_is_the_operators_matter(lake: Lake) -> None:
    lake.commit("events", 0, 1)
    lake.written.store.delete(one.path for one in list(lake.written.store.list("events/metadata")))

    answer = lake.ask("GET", f"{TABLE}/events")

    assert (answer.status, answer.json["error"]["type"]) == (503, "ServiceUnavailableException")
    assert lake.ask("GET", TABLE).status == 200


# ── on S3 ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def lake_on_s3(s3: S3Server, tmp_path: Path) -> Iterator[Lake]:
    reader = {
        "lake_reader_endpoint": s3.endpoint, "lake_reader_region": "us-east-1",
        "lake_reader_access_key_id": READER["AWS_ACCESS_KEY_ID"],
        "lake_reader_secret_access_key": READER["AWS_SECRET_ACCESS_KEY"],
    }  # fmt: skip
    place = f"s3://lake/{tmp_path.name}"
    with start_server(tmp_path / "data", environment=s3.environment, lake_url=place, **reader) as server:
        yield lake_beside(server, place)


def test_readers_get_the_keys_that_only_read_and_never_the_servers_own(
    lake_on_s3: Lake, s3: S3Server, duckdb: DuckDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_on_s3
    lake.commit("events", 0, 5)
    lake.commit("deliveries", 0, 5)
    for name in s3.environment:
        monkeypatch.delenv(name)  # who reads knows only what the catalog says

    answer = lake.ask("GET", f"{TABLE}/events")
    duckdb.attach(lake.server.url, lake.token)
    try:
        counted = duckdb.sql("SELECT count(*)::INT FROM lake.penstock.deliveries")
    finally:
        duckdb.sql("DETACH lake")

    assert counted == [[5]]
    assert by_pyiceberg(lake.catalog, "events").num_rows == 5
    assert by_polars(lake.catalog, "deliveries").num_rows == 5
    assert answer.json["config"]["s3.access-key-id"] == READER["AWS_ACCESS_KEY_ID"]
    own = (s3.environment["AWS_ACCESS_KEY_ID"], s3.environment["AWS_SECRET_ACCESS_KEY"])
    assert not any(json.dumps(secret).encode() in answer.body for secret in own)


def test_a_lake_on_s3_is_archived_trimmed_and_read_back(lake_on_s3: Lake) -> None:
    server = lake_on_s3.server
    for number in range(20):
        publish(server, "/orders", b"%d" % number)
    upto = archive(server, lake_on_s3.written.store.url)

    assert ask(server, "POST", "/v1/log/trim", json.dumps({"upto": upto, "apply": True}).encode()).status == 200

    read = ask(server, "GET", "/v1/read", stream="/orders", limit=100).json["entries"]
    assert [entry["data"] for entry in read] == [str(number) for number in range(20)]


def test_the_records_name_every_table_once() -> None:
    assert sorted(table for tables in RECORDS.values() for table in tables) == sorted(TABLES)
