"""`lake tables`, `lake declare`, `lake drop`: tables with columns of the JSON bodies of streams."""

from __future__ import annotations

import json as json_text
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from penstock.cli.options import Json, Token, Url, connect
from penstock.cli.output import as_line, escape, show
from penstock.errors import InputInvalid

PATH: Final = "/v1/lake/tables"

TableName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the table, like orders_eu.")]


def add_to(lake: typer.Typer) -> None:
    """Make these commands known."""
    for command in (tables, declare, drop):
        lake.command()(command)


def tables(url: Url = "", token: Token = "", json: Json = False) -> None:
    """List the typed tables: their streams, their columns, and how far each is.

    A table that was declared a moment ago is made of the history first: 'behind' says how many ids are left.
    """
    with connect(url, token) as client:
        found = client.call("GET", PATH)["tables"]
    if json:
        print(as_line({"tables": found}))
        return
    for table in found:
        print(f"{table['name']}  {escape(', '.join(table['streams']))}  up to id {table['done']:,}, {_behind(table)}")
        for name, column in table["columns"].items():
            path = f"  at {escape(column['path'])}" if column["path"] != name else ""
            print(f"  {name:<24} {column['type']}{path}")


def declare(
    name: TableName,
    column: Annotated[
        list[str],
        typer.Option(metavar="NAME=TYPE[@PATH]", help="A column, like city=string@address.city; again for more."),
    ],
    streams: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Whose bodies; again for more. Said once.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Declare a table of the JSON bodies of streams, or add columns to one.

    Types: string, boolean, int, long, double, decimal(10,2), date, timestamp, binary (base64). The pipeline makes the
    table of all that is archived, and goes on. A body that does not fit becomes a row of 'unreadable'.

    \b
    ./penstock lake declare orders --streams '/orders/*' --column item=string --column 'price=decimal(10,2)'
    One more column, later:
      ./penstock lake declare orders --column city=string@address.city
    """
    columns = dict(_column(one) for one in column)
    with connect(url, token) as client:
        known = {one["name"]: one for one in client.call("GET", PATH)["tables"]}.get(name)
        if known is None and not streams:
            raise InputInvalid("--streams", f"is missing: there is no table {name} yet")
        before: dict[str, Any] = known["columns"] if known else {}
        wanted = {"streams": streams or (known or {}).get("streams"), "columns": {**before, **columns}}
        made = client.call("PUT", f"{PATH}/{quote(name, safe='')}", body=json_text.dumps(wanted).encode())
    show(made, f"{name} has {len(made['columns'])} columns of {', '.join(made['streams'])}; {_behind(made)}", json)


def drop(name: TableName, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Delete a typed table. Its events stay; declared again, it is made of them anew.

    \b
    ./penstock lake drop orders
    """
    with connect(url, token) as client:
        client.send("DELETE", f"{PATH}/{quote(name, safe='')}")
    show({"dropped": name}, f"{name} is deleted; the pipeline removes its files", json)


def _behind(table: dict[str, Any]) -> str:
    return f"{table['lag']:,} behind" if table["lag"] else "nothing behind"


def _column(given: str) -> tuple[str, dict[str, str]]:
    name, equals, rest = given.partition("=")
    kind, at, path = rest.partition("@")
    if not (name and equals and kind) or (at and not path):
        raise InputInvalid("--column", f"{given[:60]!r} is not NAME=TYPE or NAME=TYPE@PATH")
    return name, {"type": kind, **({"path": path} if path else {})}
