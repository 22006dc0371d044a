"""Answers one question in SQL. It comes on standard input, the answer goes out as Arrow or JSON.

A folder is read by DuckDB itself. Any other store is read by pyarrow, and DuckDB is given the rows: so it needs no
extension for it, no network, and never sees a key. The process bounds its own memory and CPU time; `sql.py` bounds the
waiting, and `limits.py` has the numbers that hold for questions over HTTP.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.iceberg.sql import FAILED, SqlProblem, SqlQuestion, plain
from penstock.iceberg.store import FileStore, open_store
from penstock.wire.lake_files import parse_location
from penstock.wire.table_columns import DELIVERY_OUTCOMES, READ_BY_OUTCOMES, outcomes_sql

if TYPE_CHECKING:
    from penstock.iceberg.reading import FieldInfo

BATCH_ROWS: Final = 2_048
NICENESS: Final = 5
"""The process has a lower priority than the server: a question in SQL must not slow down other work."""
EXACT: Final = 2**53
"""Whole numbers up to here are exact in a browser; larger ones are given as text."""
_PARENT_DEATH: Final = 1  # PR_SET_PDEATHSIG
_BESIDE_MIB: Final = 1_024  # what Python, pyarrow and the threads' stacks take besides DuckDB's own memory

_SQL_TYPES: Final = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamptz": "TIMESTAMP WITH TIME ZONE", "string": "VARCHAR", "binary": "BLOB",
}  # fmt: skip
_ARROW_TYPES: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.utf8(), "binary": pa.binary(),
}  # fmt: skip


def main() -> None:
    """Answer the question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=SqlQuestion)
    _bound(question)
    import duckdb

    send = _send_json if question.form == "json" else _send
    try:
        send(_asked(duckdb, question), question)
    except (duckdb.OutOfMemoryException, MemoryError):
        _fail("sql_too_large", f"the question needs more than {question.memory_mib} MiB of memory")
    except OverflowError:
        _fail("sql_refused", "a date or time is not within the years 1 to 9999: cast it to VARCHAR")
    except (duckdb.Error, OSError, ValueError) as error:
        _fail("sql_refused", str(error).partition("\n\n")[0].strip())


def _bound(question: SqlQuestion) -> None:
    """Let the system hold this process to its limits, whatever DuckDB does: no file may grow by a byte.

    It ends with the process that has started it, and leaves the processor to others.
    """
    os.nice(NICENESS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
    memory, seconds = (question.memory_mib + _BESIDE_MIB) * 1024 * 1024, int(question.seconds * question.threads) + 1
    for what, limit in (
        (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, seconds),
    ):  # fmt: skip
        resource.setrlimit(what, (limit, limit))


def _asked(duckdb: Any, question: SqlQuestion) -> Any:
    """The answer, which DuckDB makes as it is read."""
    settings = {
        "threads": question.threads, "memory_limit": f"{question.memory_mib}MiB", "temp_directory": "",
        "autoinstall_known_extensions": False, "autoload_known_extensions": False,
        "allow_community_extensions": False, "python_enable_replacements": False,
    }  # fmt: skip
    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    store = open_store(question.lake)
    views, allowed = [], []
    for name, location in question.tables.items():
        from penstock.iceberg.reading import TablePlanner, read_info  # not for a question about no table

        fields = read_info(store.read(store.relative(location))).fields
        paths = [store.place(file.path) for file in TablePlanner(store).files(location)]
        if store.is_local and paths:
            allowed += paths
            views.append((name, _read_parquet(paths, fields)))
        else:
            connection.register(name, _dataset(store, paths, fields))
    connection.execute("SET allowed_paths = $paths", {"paths": allowed})
    connection.execute("SET enable_external_access = false")
    if DELIVERY_OUTCOMES not in question.tables and question.tables.keys() >= set(READ_BY_OUTCOMES):
        views.append((DELIVERY_OUTCOMES, outcomes_sql()))
    for name, select in views:  # temporary, as what is registered is: no other could read from that
        connection.execute(f'CREATE TEMP VIEW "{name}" AS {select}')
    connection.execute("SET lock_configuration = true")
    statements = connection.extract_statements(question.sql)
    kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in kinds:
        raise ValueError("this is not one SELECT: the lake is only read")
    return connection.sql(statements[0]).to_arrow_reader(BATCH_ROWS)


def _read_parquet(paths: list[str], fields: list[FieldInfo]) -> str:
    """A SELECT that reads these files by field ids, as Iceberg wants it: columns that a file lacks are null.

    Files that were taken over from the version before Iceberg have none, and are read by the names of their columns.
    """
    adopted = [path for path in paths if (file := parse_location(path)) and not file.has_field_ids]
    columns = ", ".join(
        f"{field.id}: {{name: {_quoted(field.name)}, type: {_quoted(_sql_type(field))}, default_value: NULL}}"
        for field in fields
    )
    taken = set(adopted)
    own = _files(path for path in paths if path not in taken)
    select = f"SELECT * FROM read_parquet({own}, hive_partitioning = false, schema = MAP {{{columns}}})"  # noqa: S608
    if not adopted:
        return select
    if len(adopted) == len(paths):
        select = "SELECT " + ", ".join(f'NULL::{_sql_type(one)} AS "{one.name}"' for one in fields) + " WHERE false"
    by_name = f"SELECT * FROM read_parquet({_files(adopted)}, hive_partitioning = false, union_by_name = true)"  # noqa: S608
    return f"{select} UNION ALL BY NAME {by_name}"


def _files(paths: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, paths))}]"


def _dataset(store: FileStore, paths: list[str], fields: list[FieldInfo]) -> Any:
    """The rows of these files as pyarrow reads them; DuckDB tells it which columns and rows it wants."""
    from pyarrow import dataset

    schema = pa.schema([(field.name, _arrow_type(field)) for field in fields])
    if not paths:
        return schema.empty_table()
    return dataset.dataset(paths, schema=schema, format="parquet", filesystem=store.files)


def _sql_type(field: FieldInfo) -> str:
    kind = str(field.type)
    return kind.upper() if kind.startswith("decimal(") else _SQL_TYPES[kind]


def _arrow_type(field: FieldInfo) -> Any:
    kind = str(field.type)
    if kind.startswith("decimal("):
        return pa.decimal128(*map(int, kind[8:-1].split(",")))
    return _ARROW_TYPES[kind]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _send(reader: Any, question: SqlQuestion) -> None:
    """Write the rows, one more than are wanted if there are more."""
    left, room = question.rows + 1, question.answer_mib * 1024 * 1024
    with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as out:
        for batch in reader:
            room -= batch.nbytes
            if room < 0:
                _fail("sql_too_large", f"the answer has more than {question.answer_mib} MiB")
            out.write_batch(batch.slice(0, left))
            left -= batch.num_rows
            if left <= 0:
                return


def _send_json(reader: Any, question: SqlQuestion) -> None:
    """Write names, types and rows as one object."""
    rows: list[list[Any]] = []
    most = question.answer_mib * 1024 * 1024
    room, cut = most, False
    for batch in reader:
        some = batch.slice(0, question.rows - len(rows))
        room -= some.nbytes
        if room < 0:
            break
        rows += ([_shown(value) for value in row] for row in zip(*(one.to_pylist() for one in some), strict=True))
        cut = some.num_rows < batch.num_rows
        if cut:
            break
    columns = [{"name": field.name, "type": str(field.type)} for field in reader.schema]
    answer = msgspec.json.encode({"columns": columns, "rows": rows, "cut": cut}) if room >= 0 else b""
    if room < 0 or len(answer) > most:
        _fail("sql_too_large", f"the answer has more than {question.answer_mib} MiB")
    sys.stdout.buffer.write(answer)


def _shown(value: Any) -> Any:
    value = plain(value)
    return str(value) if type(value) is int and abs(value) > EXACT else value


def _fail(code: str, message: str) -> NoReturn:
    sys.stderr.write(msgspec.json.encode(SqlProblem(code, message)).decode())
    sys.stderr.flush()
    sys.exit(FAILED)


if __name__ == "__main__":
    main()
