"""`/v1/lake/sql`: one question in SQL about the lake, answered by DuckDB beside the server.

    GET   /v1/lake/sql    whether it can be asked here, about which tables, and what a question may cost
    POST  /v1/lake/sql    {"query": "SELECT …"} → {"columns": […], "rows": [[…]], "cut": false}

The process that answers can read the tables and nothing else. It ends with its answer, at its limits, and when the
client goes away.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from penstock.api.context import Context, decoded, only
from penstock.api.describing import BOOLEAN, a_list, an_object, operation, shown_as
from penstock.errors import NotFound
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import CALL_BYTES, SQL_MEMORY_MIB, SQL_ROWS, SQL_SECONDS

_encode = msgspec.json.Encoder().encode


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/lake/sql`."""

    query: Annotated[str, shown_as(examples=["SELECT door, state, count(*) FROM deliveries GROUP BY ALL"])]


class SqlOffer(msgspec.Struct):
    """Whether and what can be asked."""

    lake: bool
    installed: bool
    tables: list[str]
    seconds: int = SQL_SECONDS
    rows: int = SQL_ROWS
    memory_mib: int = SQL_MEMORY_MIB


class SqlAnswering(Protocol):
    """Who answers."""

    @property
    def installed(self) -> bool: ...
    async def tables(self) -> list[str]: ...
    async def ask(self, sql: str) -> bytes: ...


class LakeSqlApi:
    """Answers operators."""

    def __init__(self, context: Context, questions: SqlAnswering | None) -> None:
        self._context, self._questions = context, questions

    def routes(self) -> list[Route]:
        """Its part of the table."""
        admit = self._context.admitting(lambda caller: caller.check_admin("SQL"))
        whole = WHOLE(CALL_BYTES)
        return [
            Route("GET", "/v1/lake/sql", self.offer, door="v1"),
            # No deadline for the request: the question has its own. So the end of the connection is noticed at once.
            Route("POST", "/v1/lake/sql", self.ask, body=whole, timeout=None, admit=admit, door="v1"),
        ]

    @operation("Whether the lake can be asked in SQL here, about which tables.", answers={200: SqlOffer})
    async def offer(self, request: Request) -> Response:
        """What can be asked."""
        self._context.caller(request).check_admin("SQL")
        only(request)
        asked = self._questions
        offer = SqlOffer(True, asked.installed, await asked.tables()) if asked else SqlOffer(False, False, [])
        return Response(200, _encode(offer))

    @operation(
        "Answer one SELECT about the lake's tables, bounded in time, memory and rows.",
        body=SqlRequest,
        answers={
            200: an_object(
                columns=a_list(an_object(name={"type": "string"}, type={"type": "string"})),
                rows=a_list({"type": "array"}),
                cut=BOOLEAN,
            )
        },
        errors=(404, 501),
    )
    async def ask(self, request: Request) -> Response:
        self._context.caller(request).check_admin("SQL")
        only(request)
        query = decoded(request.body, SqlRequest).query
        if self._questions is None:
            raise NotFound("lake", "of this server", code="lake_unknown", remedy="Set lake.url, or start it with up.")
        return Response(200, await self._questions.ask(query))
