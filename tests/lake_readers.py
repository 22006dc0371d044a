"""Other people's programs that read the lake through the server's catalog: pyiceberg, Polars, DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog

DUCKDB = Path(__file__).parents[1] / ".venv/duckdb/bin/python"
_DUCKDB_PROGRAM = """
import importlib, json, pathlib, sys, duckdb
connection = duckdb.connect()
for name in ("avro", "httpfs", "iceberg"):
    folder = pathlib.Path(importlib.import_module("duckdb_extension_" + name).__file__).parent
    connection.execute(f"LOAD '{next(folder.rglob('*.duckdb_extension'))}'")
connection.execute("SET TimeZone='UTC'")
for line in sys.stdin:
    try:
        answer = {"rows": connection.execute(json.loads(line)).fetchall()}
    except duckdb.Error as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=str), flush=True)
"""


class DuckDbError(Exception):
    """DuckDB says that something cannot be done."""


class DuckDb:
    """A DuckDB with its Iceberg extension, in a process of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        if not DUCKDB.exists():
            pytest.fail("DuckDB's Iceberg extension is missing: run ./penstock install duckdb")
        self._process = subprocess.Popen(
            [DUCKDB, "-c", _DUCKDB_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def sql(self, statement: str) -> list[list[Any]]:
        """What it answers; `DuckDbError` if it refuses."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise DuckDbError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def attach(self, url: str, token: str) -> None:
        """Know the lake's tables as `lake.penstock.NAME`, as docs/lake.md says it."""
        self.sql(f"CREATE OR REPLACE SECRET penstock (TYPE iceberg, TOKEN '{token}')")
        self.sql(f"ATTACH 'penstock' AS lake (TYPE iceberg, ENDPOINT '{url}/iceberg', SECRET penstock)")

    def table(self, query: str, folder: Path) -> pa.Table:
        """The rows of *query*, by way of a file."""
        self.sql(f"COPY ({query}) TO '{folder}/answer.parquet' (FORMAT parquet)")
        return pq.read_table(folder / "answer.parquet")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def start_duckdb() -> Iterator[DuckDb]:
    """A DuckDB that knows no keys but those it is told."""
    database = DuckDb({name: value for name, value in os.environ.items() if not name.startswith("AWS_")})
    try:
        yield database
    finally:
        database.end()


def open_catalog(url: str, token: str) -> Catalog:
    """The server's catalog, as pyiceberg knows it."""
    return load_catalog("penstock", type="rest", uri=f"{url}/iceberg", token=token)


def by_pyiceberg(catalog: Catalog, table: str) -> pa.Table:
    return catalog.load_table(f"penstock.{table}").scan().to_arrow()


def by_polars(catalog: Catalog, table: str) -> pa.Table:
    found = catalog.load_table(f"penstock.{table}")
    options = {name: value for name, value in found.io.properties.items() if name.startswith("s3.")}
    return polars.scan_iceberg(found, storage_options=options).collect().to_arrow()


def sorted_rows(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    """The rows as plain values, whichever types a reader prefers for them."""
    found = table.select(columns).to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in found), key=str)
