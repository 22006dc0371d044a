"""Where the pages of a data file are, for tests that damage them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PAGE = 4096


def root_of(file: Path, table: str) -> int:
    """Where a table's first page begins."""
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        root: int = connection.execute(query, (table,)).fetchone()[0]
    return (root - 1) * PAGE


def first_leaf(file: Path, table: str) -> int:
    """Where the first page of a table's rows begins: the root's first cell names it."""
    root = root_of(file, table)
    page = file.read_bytes()[root : root + PAGE]
    cell = int.from_bytes(page[12:14], "big")
    return (int.from_bytes(page[cell : cell + 4], "big") - 1) * PAGE


def overwrite(file: Path, begin: int, content: bytes) -> None:
    """Put *content* at *begin*, as a broken disk would."""
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(content)
