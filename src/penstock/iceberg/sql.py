"""Questions in SQL about the lake, answered by DuckDB in a process of its own.

    answer = ask("/srv/lake", {"events": "file:///srv/lake/events/metadata/….json"}, "SELECT …")

Whoever asks may be a stranger with the grant `export`, so the process can do nothing but read the files that the named
tables have at that moment: it may open no other file, no network, no extension, and write nothing. It is bounded in
time, memory and rows; it ends with its answer. `sql_process.py` is that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from penstock.errors import CallerError, InputInvalid, OperatorError

FAILED: Final = 3
"""Exit code of the process when it has told on standard error what is wrong."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one question may cost."""

    seconds: float = 60.0
    memory_mib: int = 1024
    rows: int = 10_000  # more are cut off, and the answer says so
    answer_mib: int = 64
    threads: int = 2


class SqlQuestion(msgspec.Struct, frozen=True):
    """What the process is told."""

    lake: str
    tables: dict[str, str]  # the location of each table's metadata.json
    sql: str
    rows: int
    memory_mib: int
    answer_mib: int
    seconds: float
    threads: int


class SqlProblem(msgspec.Struct, frozen=True):
    """What the process says when it cannot answer."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """Rows, as Arrow has them."""

    table: Any  # pyarrow.Table
    cut: bool  # there were more

    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


class DuckDbMissing(OperatorError):
    """DuckDB is not installed here."""

    code = "duckdb_missing"
    status = 503
    remedy = "Run './penstock install sql', or pip install duckdb."


class SqlRefused(InputInvalid):
    """The question cannot be answered: it is no question, it is wrong, or it wants more than the lake."""

    def __init__(self, why: str) -> None:
        super().__init__("SQL", why, code="sql_refused", remedy="Ask one SELECT about the lake's tables; docs/lake.md.")


class SqlTooLarge(CallerError):
    """The question took more time or memory than it may."""

    code = "sql_too_large"
    status = 413
    remedy = "Ask for less: fewer columns, a range of ids or of time, or a count."


def ask(lake: str, tables: Mapping[str, str], sql: str, limits: SqlLimits | None = None) -> SqlAnswer:
    """Answer one SELECT about *tables*, which are named by the locations of their metadata. Blocks until it is there.

    Raises `SqlRefused`, `SqlTooLarge`, or `DuckDbMissing`.
    """
    if find_spec("duckdb") is None:
        raise DuckDbMissing("DuckDB is not installed here")
    bounds = limits or SqlLimits()
    named = {name: location for name, location in tables.items() if name in sql.lower()}
    question = SqlQuestion(
        lake, named, sql, bounds.rows, bounds.memory_mib, bounds.answer_mib, bounds.seconds, bounds.threads
    )
    command = [sys.executable, "-P", "-m", "penstock.iceberg.sql_process"]
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            command, input=msgspec.json.encode(question), capture_output=True, check=False, timeout=bounds.seconds,
            env=_environment(lake),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SqlTooLarge(f"the question took more than {bounds.seconds:g} s") from None
    return _answer(done, bounds)


def _environment(lake: str) -> dict[str, str]:
    """What the process needs of ours: where modules are and, if the lake is no folder, how its store is reached."""
    kept = ("AWS_", "GOOGLE_", "AZURE_") if "://" in lake and not lake.startswith("file:") else ()
    passed = {name: value for name, value in os.environ.items() if name.startswith(kept)} if kept else {}
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}


def _answer(done: subprocess.CompletedProcess[bytes], bounds: SqlLimits) -> SqlAnswer:
    if done.returncode == FAILED:
        problem = msgspec.json.decode(done.stderr, type=SqlProblem)
        raise SqlTooLarge(problem.message) if problem.code == SqlTooLarge.code else SqlRefused(problem.message)
    if done.returncode:
        raise SqlTooLarge(f"the question ended DuckDB ({done.returncode}): it wanted more memory or time than it may")
    import pyarrow as pa  # type: ignore[import-untyped]

    with pa.ipc.open_stream(done.stdout) as stream:
        table = stream.read_all()
    return SqlAnswer(table.slice(0, bounds.rows), table.num_rows > bounds.rows)
