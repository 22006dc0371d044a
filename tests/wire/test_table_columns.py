"""The columns of an event are declared once; everything else follows."""

from __future__ import annotations

import ast
import sqlite3
import typing
from pathlib import Path

import penstock
from penstock.core import arrow
from penstock.engines.lake import event_rows
from penstock.engines.sqlite.schema import migrate
from penstock.pipeline.lake import EVENTS
from penstock.values import Entry
from penstock.wire.table_columns import EVENT, NAMES, TEXT, Column, ddl

SOURCE = Path(penstock.__file__).parent
ALLOWED = {"wire/table_columns.py", "engines/sqlite/reader.py"}
"""The latter takes rows of its engine's own table apart by place, and is what a replay waits for."""


def test_a_column_that_is_added_is_in_what_follows_from_the_declaration() -> None:
    added = (*EVENT, Column("region", TEXT, True, "type", "type", "for this test"))
    entry = Entry(1, "/a", 0, 0, 0, 2, arrow.Kind.DATA, "north", 5, None, "", b"x")

    assert ddl(added) == EVENTS + ", `region` STRING"
    assert arrow._type_of(added[-1]) == "string"
    assert arrow._value_of(added[-1])(entry) == "north"


def test_fields_and_columns_of_tables_are_there() -> None:
    fields = typing.get_type_hints(Entry)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    table = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('entries')")]
    connection.close()

    assert [column.field for column in EVENT if column.field] == list(fields)
    assert [column.sql for column in EVENT if column.sql] == table
    assert [column.name for column in EVENT if column.nullable and column.field] == [
        "index", "type", "expires_at", "attributes", "body",
    ]  # fmt: skip
    assert NAMES[:-1] == event_rows.ALL


def test_no_second_list_of_columns_stands_in_the_source() -> None:
    """Neither as a list of names nor as text."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if sum(name in text for name in NAMES) <= 6:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
                elements = node.keys if isinstance(node, ast.Dict) else node.elts
                names = {one.value for one in elements if isinstance(one, ast.Constant)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = {part.split(" ")[0] for part in node.value.split(", ")}
            else:
                continue
            if len(names & set(NAMES)) > 6:
                found.add(str(path.relative_to(SOURCE)))

    assert found <= ALLOWED, found
