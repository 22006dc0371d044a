"""`/v1/lake/tables`: tables of the JSON bodies of streams, with columns that are declared here. docs/lake.md.

    GET          /v1/lake/tables          all of them, and how far each is
    GET          /v1/lake/tables/NAME
    PUT          /v1/lake/tables/NAME     declare one, or add columns to it; for the admin
    DELETE       /v1/lake/tables/NAME     for the admin

    {"streams": "/orders/*", "columns": {"item": "string", "city": {"type": "string", "path": "address.city"}}}

What is declared is one record of the registry; the pipeline's job `typed` makes the table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from penstock.api.context import Context, decoded, only
from penstock.api.describing import PATTERN_FIELD, a_list, an_object, operation, shown_as, text
from penstock.api.v1.operator_actions import ActionLog
from penstock.core.names import check_pattern
from penstock.core.registry import change
from penstock.core.trim_limit import Watermark
from penstock.core.typed_tables import KEY, declared_tables, decode_tables, encode_tables
from penstock.errors import Conflict, InputInvalid, NotFound, TooLarge
from penstock.http.requests import Request
from penstock.http.responses import Response
from penstock.http.routing import WHOLE, Route
from penstock.limits import (
    PATTERNS,
    RECORD_BYTES,
    TYPED_COLUMNS,
    TYPED_NAME_CHARACTERS,
    TYPED_PATH_BYTES,
    TYPED_TABLES,
)
from penstock.values import Record
from penstock.wire.table_columns import DELIVERY_OUTCOMES, TABLES
from penstock.wire.typed_tables import OWN, TypedColumn, TypedTable, column_type, is_promotion

_NAME: Final = rf"^[a-z][a-z0-9_]{{0,{TYPED_NAME_CHARACTERS - 1}}}$"
_COLUMN: Final = rf"^[A-Za-z_][A-Za-z0-9_]{{0,{TYPED_NAME_CHARACTERS - 1}}}$"
_TYPE: Final = r"^(?:string|boolean|int|long|double|date|timestamp|binary|decimal\([0-9]{1,2},[0-9]{1,2}\))$"
_RESERVED: Final = (*TABLES, DELIVERY_OUTCOMES, "rollup", "id")
_TABLE: Final = (text("name", "Name of the table.", pattern=_NAME, most=TYPED_NAME_CHARACTERS),)
_encode = msgspec.json.Encoder().encode


class TableIncompatible(Conflict):
    """A table is there under this name, and what is declared now would change what was written."""

    code = "table_incompatible"
    remedy = "Give all columns as they are, and new ones; or DELETE the table first: it is then made anew, from events."


class ColumnRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A column whose value is elsewhere than in the field of its name."""

    type: Annotated[str, shown_as(pattern=_TYPE)]
    path: Annotated[str, shown_as(pattern=r"^[^.]+(?:\.[^.]+)*$|^$", maxLength=TYPED_PATH_BYTES)] = ""


class TypedTableRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a declaration."""

    streams: (
        Annotated[str, PATTERN_FIELD]
        | Annotated[list[Annotated[str, PATTERN_FIELD]], shown_as(minItems=1, maxItems=PATTERNS)]
    )
    columns: Annotated[
        dict[Annotated[str, shown_as(pattern=_COLUMN)], Annotated[str, shown_as(pattern=_TYPE)] | ColumnRequest],
        shown_as(minProperties=1, maxProperties=TYPED_COLUMNS),
    ]


class TypedColumnAnswer(msgspec.Struct):
    """A column, as it is kept."""

    type: str
    path: str


class TypedTableAnswer(msgspec.Struct):
    """A table, and how far it is."""

    name: str
    id: str  # of this declaration
    streams: list[str]
    columns: dict[str, TypedColumnAnswer]  # in the order of the table, after id, stream and time
    done: int = 0  # it has all of its rows up to this id of the log
    lag: int = 0  # ids that it is behind the log
    done_ms: int = 0


class TypedTablesApi:
    """Keeps what is declared."""

    def __init__(self, context: Context, actions: ActionLog) -> None:
        self._context, self._registry, self._actions = context, context.registry, actions

    def routes(self) -> list[Route]:
        """Its part of the table."""
        admit = self._context.admitting(lambda caller: caller.check_admin("declare tables"))
        one, body = "/v1/lake/tables/*", WHOLE(RECORD_BYTES)
        return [
            Route("GET", "/v1/lake/tables", self.list, door="export"),
            Route("GET", one, self.get, door="export"),
            Route("PUT", one, self.put, body=body, admit=admit, door="v1"),
            Route("DELETE", one, self.delete, door="v1"),
        ]

    @operation("The typed tables of the lake.", answers={200: an_object(tables=a_list(TypedTableAnswer))})
    async def list(self, request: Request) -> Response:
        """All tables that are declared."""
        self._context.caller(request).check_grant("export")
        only(request)
        tables = [await self._shown(table) for table in (await declared_tables(self._registry)).values()]
        return Response(200, _encode({"tables": tables}))

    @operation("One typed table of the lake.", path=_TABLE, answers={200: TypedTableAnswer}, errors=(404,))
    async def get(self, request: Request) -> Response:
        self._context.caller(request).check_grant("export")
        only(request)
        table = (await declared_tables(self._registry)).get(request.captures[0])
        if table is None:
            raise _unknown(request.captures[0])
        return Response(200, _encode(await self._shown(table)))

    @operation(
        "Declare a table of the JSON bodies of streams, or add columns to it.",
        path=_TABLE,
        body=TypedTableRequest,
        answers={200: TypedTableAnswer, 201: TypedTableAnswer},
        errors=(409, 507),
    )
    async def put(self, request: Request) -> Response:
        """Declare it. To say the same again changes nothing."""
        caller = self._context.caller(request)
        caller.check_admin("declare tables")
        only(request)
        wanted = checked_table(request.captures[0], decoded(request.body, TypedTableRequest))

        def decide(found: Record | None) -> bytes | None:
            known = decode_tables(found)
            before = known.get(wanted.name)
            if before is None and len(known) >= TYPED_TABLES:
                raise TooLarge("typed tables", len(known) + 1, TYPED_TABLES)
            after = grown(before, wanted) if before else wanted
            return None if after == before else encode_tables({**known, wanted.name: after})

        made = await change(self._registry, KEY, decide)
        if made.written:
            # Said afterwards: the pipeline wakes up when the log grows, and is to find the declaration then.
            async with self._actions.noted(request, caller, "table.declare", table=wanted.name):
                pass
        table = decode_tables(made.record)[wanted.name]
        return Response(201 if table.id == wanted.id else 200, _encode(await self._shown(table)))

    @operation("Delete a typed table.", path=_TABLE, answers={204: None}, errors=(404, 507))
    async def delete(self, request: Request) -> Response:
        """Delete it: readers do not see it any more, and the pipeline removes its files soon."""
        caller = self._context.caller(request)
        caller.check_admin("delete tables")
        only(request)
        name = request.captures[0]

        def decide(found: Record | None) -> bytes:
            known = decode_tables(found)
            if name not in known:
                raise _unknown(name)
            return encode_tables({other: table for other, table in known.items() if other != name})

        await change(self._registry, KEY, decide)
        async with self._actions.noted(request, caller, "table.delete", table=name):  # afterwards: as above
            pass
        return Response(204)

    async def _shown(self, table: TypedTable) -> TypedTableAnswer:
        record = await self._registry.get(f"lake/{table.key}")
        mark = msgspec.json.decode(record.value, type=Watermark) if record else Watermark()
        columns = {one.name: TypedColumnAnswer(one.type, one.path) for one in table.columns}
        lag = max(0, self._context.log.followed - mark.done)
        return TypedTableAnswer(table.name, table.id, list(table.streams), columns, mark.done, lag, mark.done_ms)


def _unknown(name: str) -> NotFound:
    return NotFound("typed table", name[:80], code="table_unknown", remedy="GET /v1/lake/tables lists them.")


# ── what is declared, checked ─────────────────────────────────────────────────────────────────


def checked_table(name: str, wanted: TypedTableRequest) -> TypedTable:
    """The table that a request declares, under an id of its own; `InputInvalid` or `TooLarge` if it cannot be."""
    if not re.fullmatch(_NAME, name) or name in _RESERVED:
        why = "is a table of the system" if name in _RESERVED else f"is not like orders_eu, of {TYPED_NAME_CHARACTERS}"
        raise _invalid(f"table {name[:80]!r}", why)
    streams = [wanted.streams] if isinstance(wanted.streams, str) else wanted.streams
    for what, size, limit in (
        ("patterns of streams", len(streams), PATTERNS),
        ("columns of a table", len(wanted.columns), TYPED_COLUMNS),
    ):
        if size > limit:
            raise TooLarge(what, size, limit)
        if not size:
            raise _invalid(what, "there are none")
    patterns = tuple(check_pattern(one) for one in streams)
    return TypedTable(name, secrets.token_hex(4), patterns, tuple(_checked_columns(wanted.columns)))


def _checked_columns(columns: Mapping[str, str | ColumnRequest]) -> Iterator[TypedColumn]:
    known = {column.name for column in OWN}
    for name, said in columns.items():
        what, wanted = f"column {name[:80]!r}", ColumnRequest(said) if isinstance(said, str) else said
        if not re.fullmatch(_COLUMN, name):
            raise _invalid(what, f"is not like item_price, of {TYPED_NAME_CHARACTERS} characters at most")
        if name.lower() in known:
            raise _invalid(what, "is there already: id, stream and time are, and no two differ by case alone")
        known.add(name.lower())
        path = wanted.path or name
        if len(path.encode()) > TYPED_PATH_BYTES or not all(path.split(".")):
            raise _invalid(what, f"its path is not like address.city, of {TYPED_PATH_BYTES} bytes at most")
        kind = wanted.type.lower().replace(" ", "")
        try:
            column_type(kind)
        except ValueError as error:
            raise _invalid(what, str(error)) from None
        yield TypedColumn(name, kind, path)


def _invalid(what: str, why: str) -> InputInvalid:
    return InputInvalid(what, why, code="table_invalid", remedy="docs/lake.md says what can be declared.")


def grown(before: TypedTable, wanted: TypedTable) -> TypedTable:
    """The table *before* with the columns that are new in *wanted*; `TableIncompatible` if it differs otherwise."""
    if before.streams != wanted.streams:
        raise TableIncompatible(f"{before.name} is a table of {', '.join(before.streams)}")
    said = {one.name: one for one in wanted.columns}
    columns = [_promoted(one, said.pop(one.name, None)) for one in before.columns]
    return TypedTable(before.name, before.id, before.streams, (*columns, *said.values()))


def _promoted(before: TypedColumn, wanted: TypedColumn | None) -> TypedColumn:
    if wanted is None:
        raise TableIncompatible(f"column {before.name} is missing: columns stay")
    if wanted.path != before.path:
        raise TableIncompatible(f"column {before.name} is at {before.path}, and stays there")
    if not is_promotion(before.type, wanted.type):
        raise TableIncompatible(f"column {before.name} is {before.type}: int may become long, a decimal wider")
    return wanted
