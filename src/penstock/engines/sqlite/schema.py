"""The tables of `penstock.db`, and how an older file becomes a file of today.

    entries         everything that was appended, in order of id; written once, at the end
    streams         a number for each stream's name; its subscribers
    heads           where each stream goes on          ┐ both follow `entries` at a distance:
    places          the ids of each stream's entries   ┘ see fold.py
    keys            idempotency keys with their answers, oldest first
    producers       the last sequence of each subject's producers, for ever; of those before version 2,
                    which had no subject: producers_without_subject
    records         the registry
    months          the months of the mailbox; each has tables of its own (mailbox.py)
    facts           single values: folded_upto, trimmed_upto, clean …

`entries.idx` is the index of a data entry, of a part its first piece's, and of a meta entry the index
that the stream's next data entry will have. So it never falls along a stream, and neither do id and
(chunk, offset): one index by (stream, id) is enough to find any of them. `size` is 0 for a part only.

Someone who reads the file from outside (the Arrow export does) needs these two only:

    SELECT e.id, s.name, iif(e.kind <> 1 AND e.size > 0, e.idx, NULL), e.chunk, e.offset, …
    FROM entries e JOIN streams s ON s.number = e.stream WHERE e.id > ? AND e.id <= ? ORDER BY e.id

where the upper bound is an id that the log has `followed`, and an entry of kind 0 or 2 whose `expires_ms`
has come is to be shown as kind 3 without its type, attributes and body.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

APPLICATION_ID = 0x50454E53  # "PENS": tells our files from other SQLite files
FILE_NAME = "penstock.db"

_VERSION_1 = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

CREATE TABLE streams (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    subscribers TEXT NOT NULL DEFAULT '[]'   -- JSON
);

CREATE TABLE entries (
    id INTEGER PRIMARY KEY,                  -- never given twice: see last_id
    stream INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    size INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    type TEXT NOT NULL,
    published_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    attributes TEXT NOT NULL,
    body BLOB NOT NULL                       -- last, so that scans need not read long ones
);
CREATE INDEX entries_expiring ON entries (expires_ms) WHERE expires_ms IS NOT NULL AND kind = 0;

CREATE TABLE heads (
    stream INTEGER PRIMARY KEY,
    next_index INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    last_id INTEGER NOT NULL,
    last_ms INTEGER NOT NULL
);

CREATE TABLE places (
    stream INTEGER NOT NULL,
    id INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (stream, id)
) WITHOUT ROWID;

CREATE TABLE keys (
    number INTEGER PRIMARY KEY,              -- rises with time: the oldest keys are the first rows
    subject TEXT NOT NULL,
    stream TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    answer BLOB NOT NULL,                    -- Appended, as msgpack
    made_ms INTEGER NOT NULL,
    UNIQUE (subject, stream, key)
);

CREATE TABLE producers (
    name TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    answer BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE records (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    expires_ms INTEGER
) WITHOUT ROWID;
CREATE INDEX records_expiring ON records (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE months (month TEXT PRIMARY KEY) WITHOUT ROWID;

INSERT INTO facts VALUES ('folded_upto', 0), ('trimmed_upto', 0), ('version', 0), ('clean', 1);
"""

# A producer's name was good for the whole log: whoever knew it could use up its sequences.
_VERSION_2 = """
ALTER TABLE producers RENAME TO producers_without_subject;

CREATE TABLE producers (
    subject TEXT NOT NULL,
    name TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    answer BLOB NOT NULL,
    PRIMARY KEY (subject, name)
) WITHOUT ROWID;
"""

Migration = Callable[[sqlite3.Connection], None]


def _run(script: str) -> Migration:
    def migrate(connection: sqlite3.Connection) -> None:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.execute(statement)

    return migrate


MIGRATIONS: tuple[Migration, ...] = (_run(_VERSION_1), _run(_VERSION_2))
"""The n-th takes a file from version n to n + 1; an empty file has version 0."""


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to today's schema, one version a transaction: a crash leaves a whole version."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for version, step in enumerate(migrations[found:], start=found + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def fact(connection: sqlite3.Connection, name: str) -> int:
    """A single value of the file."""
    return int(connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0])


def set_fact(connection: sqlite3.Connection, name: str, value: int) -> None:
    """Change a single value; the caller's transaction decides when it holds."""
    connection.execute("UPDATE facts SET value = ? WHERE name = ?", (value, name))


def last_id(connection: sqlite3.Connection) -> int:
    """The highest id that was ever given. Entries go by trimming only, which remembers the last that went."""
    newest = int(connection.execute("SELECT ifnull(max(id), 0) FROM entries").fetchone()[0])
    return max(newest, fact(connection, "trimmed_upto"))
