"""Questions in SQL about the lake, for a server: bounded in number, time, memory and rows."""

from __future__ import annotations

from typing import Final

from penstock.engines.lake.reader import LakeReader
from penstock.errors import Busy
from penstock.iceberg.sql import SqlLimits, ask_json, is_installed
from penstock.limits import SQL_ANSWER_MIB, SQL_AT_ONCE, SQL_MEMORY_MIB, SQL_ROWS, SQL_SECONDS
from penstock.wire.table_columns import DELIVERY_OUTCOMES, READ_BY_OUTCOMES

BOUNDS: Final = SqlLimits(SQL_SECONDS, SQL_MEMORY_MIB, SQL_ROWS, SQL_ANSWER_MIB, threads=1)


class LakeQuestions:
    """Answers questions about one lake, each in a process of its own (`iceberg/sql.py`)."""

    def __init__(self, lake: LakeReader) -> None:
        self._lake = lake
        self._asked = 0

    @property
    def installed(self) -> bool:
        """Whether DuckDB is."""
        return is_installed()

    async def tables(self) -> list[str]:
        """The names that a question may use."""
        names = set(await self._lake.tables())
        return sorted({*names, DELIVERY_OUTCOMES} if names.issuperset(READ_BY_OUTCOMES) else names)

    async def ask(self, sql: str) -> bytes:
        """The answer as JSON, from the tables as they are now. Cancelling the call ends the process."""
        if self._asked >= SQL_AT_ONCE:
            raise Busy("questions in SQL at once", SQL_AT_ONCE)
        self._asked += 1
        try:
            return await ask_json(self._lake.url, await self._lake.tables(), sql, BOUNDS)
        finally:
            self._asked -= 1
