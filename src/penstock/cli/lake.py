"""`lake` and `lake sql`: where the lake is, how other programs read it, and questions in SQL."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.lake_readers import READERS, lines_for
from penstock.cli.options import Json, Token, Url, connect
from penstock.cli.output import as_line, escape, say
from penstock.errors import InputInvalid, NotFound

if TYPE_CHECKING:
    from penstock.client.api import Client
    from penstock.iceberg.sql import SqlAnswer

TABLES: Final = "/iceberg/v1/namespaces/penstock/tables"

lake = typer.Typer(help="The lake: its tables, how others read them, questions in SQL.", invoke_without_command=True)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table as the catalog tells it now."""

    name: str
    location: str  # of its metadata.json
    rows: int
    files: int
    bytes: int
    committed: str  # when the last commit was


@lake.callback()
def overview(
    context: typer.Context,
    reader: Annotated[
        str, typer.Option("--for", metavar="READER", help=f"Only the lines for one of {', '.join(READERS)}.")
    ] = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show where the lake is, its tables, and the lines to paste that read them with other programs.

    \b
    ./penstock lake
    ./penstock lake --for polars > read_lake.py
    ./penstock lake sql "SELECT stream, count(*) FROM events GROUP BY ALL ORDER BY 2 DESC LIMIT 5"
    """
    if context.invoked_subcommand:
        return
    if reader and reader not in READERS:
        raise InputInvalid("--for", f"{reader!r} is none of {', '.join(READERS)}")
    with connect(url, token) as client:
        place, tables = place_of(client), list(tables_of(client))
    if json:
        print(as_line({"lake": place, "catalog": f"{client.url}/iceberg", "tables": tables}))
    elif reader:
        print(lines_for(reader, client.url, place))
    else:
        _show(client.url, place, tables)


def _show(url: str, place: str, tables: list[LakeTable]) -> None:
    print(f"lake     {escape(place)}\ncatalog  {url}/iceberg  (namespace penstock, tokens with the grant export)\n")
    print(f"{'table':<14} {'rows':>14} {'files':>7} {'bytes':>16}  last commit")
    for table in tables:
        counts = f"{table.rows:>14,} {table.files:>7,} {table.bytes:>16,}"
        print(f"{table.name:<14} {counts}  {table.committed or 'none yet'}")
    print("\nexport PENSTOCK_TOKEN=$(./penstock token --sub analyst --grant export --ttl 30d), then one of these:")
    for reader in READERS:
        print(f"\n── {reader} " + "─" * (76 - len(reader)))
        print(lines_for(reader, url, place))


@lake.command()
def sql(
    question: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT; '-' reads it from standard input.")],
    rows: Annotated[int, typer.Option(metavar="N", min=1, max=1_000_000, help="Rows at most.")] = 1_000,
    seconds: Annotated[float, typer.Option(metavar="N", min=0.1, max=3_600, help="It may take this long.")] = 60.0,
    memory: Annotated[int, typer.Option(metavar="MIB", min=64, max=65_536, help="Memory that it may use.")] = 1_024,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values, with a line of names.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Answer a question about the lake, with DuckDB in a process of its own that can read nothing else.

    The tables are known by their names, as they are at this moment. docs/lake.md has ten questions to begin with.

    \b
    ./penstock lake sql "SELECT door, state, count(*) FROM deliveries GROUP BY ALL"
    ./penstock lake sql "SELECT * FROM events WHERE stream = '/orders' ORDER BY id DESC LIMIT 20" --json
    """
    from penstock.iceberg.sql import SqlLimits, ask, plain

    if json and as_csv:
        raise InputInvalid("--csv", "is given, and so is --json")
    with connect(url, token) as client:
        place, tables = place_of(client), {table.name: table.location for table in tables_of(client)}
    asked = sys.stdin.read() if question == "-" else question
    answer = ask(place, tables, asked, SqlLimits(seconds=seconds, memory_mib=memory, rows=rows))
    if json:
        for row in answer.rows():
            print(as_line({name: plain(value) for name, value in row.items()}))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.table.column_names)
        writer.writerows(map(plain, row.values()) for row in answer.rows())
    else:
        print_table(answer)
    if answer.cut:
        say(f"penstock: there are more than {rows:,} rows; --rows says how many are shown", sys.stderr)


def print_table(answer: SqlAnswer) -> None:
    """Print columns for people; a long value is cut where it would take more than its share."""
    from penstock.iceberg.sql import plain

    names = answer.table.column_names
    rows = [[_short(plain(value)) for value in row.values()] for row in answer.rows()]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, ["─" * width for width in widths], *rows):
        say("  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)).rstrip())


def _short(value: Any, most: int = 60) -> str:
    text = "" if value is None else escape(f"{value:,}" if type(value) is int else str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def place_of(client: Client) -> str:
    """Where the lake is."""
    place = str(client.call("GET", "/v1/pipeline")["lake"])
    if not place:
        raise NotFound("lake", client.url, remedy="It is there from the pipeline's first archive on: ./penstock up.")
    return place


def tables_of(client: Client) -> Iterator[LakeTable]:
    """Every table, as the catalog tells it now."""
    for found in client.call("GET", TABLES)["identifiers"]:
        answer = client.call("GET", f"{TABLES}/{found['name']}")
        metadata = answer["metadata"]
        newest = metadata.get("current-snapshot-id")
        known = (one for one in metadata.get("snapshots", ()) if one["snapshot-id"] == newest)
        snapshot: dict[str, Any] = next(known, {})
        summary, ms = snapshot.get("summary", {}), snapshot.get("timestamp-ms")
        rows, files, size = (int(summary.get(f"total-{what}", 0)) for what in ("records", "data-files", "files-size"))
        moment = datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if ms else ""
        yield LakeTable(found["name"], answer["metadata-location"], rows, files, size, moment)
