"""Where an app is in each stream: a table in the app's own database, through any DB-API 2.0 driver."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from penstock.errors import InputInvalid
from penstock.wire.eventhorizon import Cursor, parse_cursor

log = logging.getLogger("penstock.receiver")

T = TypeVar("T")
OFFSETS_TABLE = "eventhorizon_offsets"  # unless an app chooses another name
_PLACEHOLDERS = {"qmark": ("?", "?"), "numeric": (":1", ":2"), "format": ("%s", "%s"), "pyformat": ("%s", "%s")}


class DatabaseConnection(Protocol):
    """What is needed of a DB-API connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Refusal(Exception):
    """Raised within a transaction to end it without an effect, and for a reason that is not the database's."""


class DatabaseFailed(Exception):
    """The app's database did not do its part; nothing was applied, as far as we know."""


class Offsets:
    """Where the app is in each stream, in a table of its own database."""

    def __init__(self, connect: Callable[[], DatabaseConnection], table: str) -> None:
        self._connect, self._table = connect, table
        self._connection: DatabaseConnection | None = None
        self._seen: dict[str, Cursor] = {}  # within one transaction

    @property
    def connection(self) -> DatabaseConnection:
        """The connection of the transaction in progress."""
        if self._connection is None:
            raise DatabaseFailed("there is no connection")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def in_transaction(self, work: Callable[[], tuple[T, bool]]) -> T:
        """Run *work*; commit if it says so, roll back otherwise and after every error."""
        try:
            try:
                return self._attempt(work)
            except Exception as error:
                if not _is_conflict(error):
                    raise
                return self._attempt(work)  # another pusher was quicker to make the row; it is there now
        except Refusal:
            raise
        except Exception as error:
            # The connection may be broken, and a commit may or may not have happened: the next push will tell.
            self._drop()
            raise DatabaseFailed(f"{type(error).__name__}: {error}") from error

    def _attempt(self, work: Callable[[], tuple[T, bool]]) -> T:
        self._seen = {}
        connection = self._open()
        try:
            result, commit = work()
            if commit:
                connection.commit()
            else:
                connection.rollback()
        except BaseException:
            connection.rollback()
            raise
        return result

    def get(self, stream: str) -> Cursor:
        """The app's position in a stream: the beginning of one that it does not know."""
        found = self._seen.get(stream)
        if found is None:
            select = f"SELECT position FROM {self._table} WHERE stream = {self._marks[0]}"  # noqa: S608 - no input in it
            row = self._run(select, stream).fetchone()
            found = self._seen[stream] = parse_cursor(row[0]) if row else Cursor(stream, 0, 0, "?")
        return found

    def locked(self, stream: str) -> Cursor:
        """The same, with its row locked until the end of the transaction: two pushers may come at once."""
        one = self._marks[0]
        update = f"UPDATE {self._table} SET position = position WHERE stream = {one}"  # noqa: S608
        if self._run(update, stream).rowcount == 0:
            insert = f"INSERT INTO {self._table} (stream, position) VALUES ({one}, {self._marks[1]})"  # noqa: S608
            self._run(insert, stream, str(Cursor(stream, 0, 0, "?")))
        return self.get(stream)

    def set(self, position: Cursor) -> None:
        """Move on. The row is there: it was locked."""
        one, two = self._marks
        update = f"UPDATE {self._table} SET position = {one} WHERE stream = {two}"  # noqa: S608
        self._run(update, str(position), position.stream)

    def _run(self, statement: str, *values: str) -> Any:
        cursor = self.connection.cursor()
        cursor.execute(statement, values)
        return cursor

    def _open(self) -> DatabaseConnection:
        if self._connection is None:
            connection = self._connect()
            _refuse_autocommit(connection)
            self._connection, self._marks = connection, _placeholders(connection)
            if not self._succeeds(f"SELECT position FROM {self._table} WHERE 1 = 0"):  # noqa: S608
                self._make_table()
        return self.connection

    def _make_table(self) -> None:
        columns = "stream VARCHAR(512) PRIMARY KEY, position VARCHAR(640) NOT NULL"
        if not self._succeeds(f"CREATE TABLE {self._table} ({columns})"):
            # Another process may have made it at the same moment; if not, this says what is wrong.
            self._run(f"SELECT position FROM {self._table} WHERE 1 = 0")  # noqa: S608

    def _succeeds(self, statement: str) -> bool:
        """Run it in a transaction of its own. Drivers have no common error for a table that is not there."""
        try:
            self._run(statement)
            self.connection.commit()
        except Exception:  # noqa: BLE001
            self.connection.rollback()
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # noqa: BLE001 - it is broken anyway
                log.warning("receiver.close_failed")


def _is_conflict(error: Exception) -> bool:
    """The DB-API's IntegrityError; every driver has its own class of that name."""
    return any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)


def _placeholders(connection: DatabaseConnection) -> tuple[str, str]:
    """How the driver writes the first and the second parameter."""
    module = sys.modules.get(type(connection).__module__.partition(".")[0])
    style = getattr(module, "paramstyle", "qmark")
    if style not in _PLACEHOLDERS:
        raise InputInvalid("connection", f"its driver writes parameters as {style!r}, which is not supported")
    return _PLACEHOLDERS[style]


def _refuse_autocommit(connection: DatabaseConnection) -> None:
    """Without a transaction position and data would part at the first crash."""
    by_default = type(connection).__module__.startswith("sqlite3") and connection.isolation_level is None  # type: ignore[attr-defined]
    if by_default or getattr(connection, "autocommit", False) is True:
        raise InputInvalid("connection", "is in autocommit mode")
