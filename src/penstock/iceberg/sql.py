"""Questions in SQL about the lake, answered by DuckDB in a process of its own.

    answer = ask("/srv/lake", {"events": "file:///srv/lake/events/metadata/….json"}, "SELECT …")
    answer = await ask_json(…)      # the same for a server: it does not block, and the answer is JSON already

Whoever asks may be a stranger with the grant `export`, so the process can do nothing but read the files that the named
tables have at that moment: it may open no other file, no network, no extension, and write nothing. It is bounded in
time, memory and rows; it ends with its answer. `sql_process.py` is that process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from typing import Any, Final, Literal

import msgspec

from penstock.errors import CallerError, InputInvalid, OperatorError
from penstock.wire.lake_files import STORE_KEYS
from penstock.wire.table_columns import DELIVERY_OUTCOMES, READ_BY_OUTCOMES

FAILED: Final = 3
"""Exit code of the process when it has told on standard error what is wrong."""

_COMMAND: Final = (sys.executable, "-P", "-m", "penstock.iceberg.sql_process")


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
    form: Literal["arrow", "json"] = "arrow"


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
    status = 501
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


def is_installed() -> bool:
    """Whether there is a DuckDB to ask."""
    return find_spec("duckdb") is not None


def ask(lake: str, tables: Mapping[str, str], sql: str, limits: SqlLimits | None = None) -> SqlAnswer:
    """Answer one SELECT about *tables*, which are named by the locations of their metadata. Blocks until it is there.

    Raises `SqlRefused`, `SqlTooLarge`, or `DuckDbMissing`.
    """
    bounds = limits or SqlLimits()
    question = _question(lake, tables, sql, bounds, "arrow")
    try:
        done = subprocess.run(  # noqa: S603 - ourselves
            _COMMAND, input=question, capture_output=True, check=False, timeout=bounds.seconds, env=_environment(lake)
        )
    except subprocess.TimeoutExpired:
        raise _took_too_long(bounds) from None
    _check_end(done.returncode, done.stderr)
    import pyarrow as pa  # type: ignore[import-untyped]

    with pa.ipc.open_stream(done.stdout) as stream:
        table = stream.read_all()
    return SqlAnswer(table.slice(0, bounds.rows), table.num_rows > bounds.rows)


async def ask_json(lake: str, tables: Mapping[str, str], sql: str, limits: SqlLimits) -> bytes:
    """As `ask`, without blocking: `{"columns": […], "rows": [[…]], "cut": …}`. The process ends with its caller."""
    question = _question(lake, tables, sql, limits, "json")
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(lake)
    )
    try:
        async with asyncio.timeout(limits.seconds):
            answer, problem = await process.communicate(question)
    except TimeoutError:
        raise _took_too_long(limits) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    _check_end(process.returncode or 0, problem)
    return answer


def plain(value: Any) -> Any:
    """A value as JSON and people have it: bytes as text, and a sum of whole numbers as a whole number."""
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    return value


def _question(
    lake: str, tables: Mapping[str, str], sql: str, bounds: SqlLimits, form: Literal["arrow", "json"]
) -> bytes:
    if not is_installed():
        raise DuckDbMissing("DuckDB is not installed here")
    text = sql.lower()
    wanted = READ_BY_OUTCOMES if DELIVERY_OUTCOMES in text else ()
    named = {name: location for name, location in tables.items() if name in text or name in wanted}
    question = SqlQuestion(
        lake, named, sql, bounds.rows, bounds.memory_mib, bounds.answer_mib, bounds.seconds, bounds.threads, form
    )
    return msgspec.json.encode(question)


def _environment(lake: str) -> dict[str, str]:
    """What the process needs of ours: where modules are and, if the lake is no folder, how its store is reached."""
    kept = STORE_KEYS if "://" in lake and not lake.startswith("file:") else ()
    passed = {name: value for name, value in os.environ.items() if name.startswith(kept)} if kept else {}
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}


def _took_too_long(bounds: SqlLimits) -> SqlTooLarge:
    return SqlTooLarge(f"the question took more than {bounds.seconds:g} s")


def _check_end(code: int, said: bytes) -> None:
    """Raise what the process could not do."""
    if code == FAILED:
        problem = msgspec.json.decode(said, type=SqlProblem)
        raise SqlTooLarge(problem.message) if problem.code == SqlTooLarge.code else SqlRefused(problem.message)
    if code:
        raise SqlTooLarge(f"the question ended DuckDB ({code}): it wanted more memory or time than it may")
