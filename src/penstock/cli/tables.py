"""`tables`: the months that mailboxes are kept by."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.options import Json, Token, Url, connect


def tables(
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it only say what is to be done.")] = False,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Make the tables of this month and the next, and drop those that nobody is on any more.

    A running server does this once a day by itself.

    \b
    ./penstock tables
    ./penstock tables --apply
    """
    with connect(url, token) as client:
        plan = client.call("POST" if apply else "GET", "/v1/tables")
    if json:
        print(msgspec.json.encode(plan).decode())
        return
    done = ("made", "dropped") if apply else ("to make", "to drop")
    print(f"this month: {plan['month']}")
    for word, months in zip(done, (plan["make"], plan["drop"]), strict=True):
        print(f"{word}: {', '.join(months) or 'none'}")
    if plan["kept"]:
        print(f"kept, as somebody is still on them: {', '.join(plan['kept'])}")


def add_to(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(tables)
