"""Options that several commands share, and where they come from when they are not given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import InputInvalid

if TYPE_CHECKING:
    from penstock.client.api import Client
    from penstock.settings import Settings

DATA = Path("penstock-data")
URL = "http://127.0.0.1:8800"


def directory(given: str) -> Path:
    """The directory that an option names; an empty text would be the one that we are in."""
    if not str(given):
        raise InputInvalid("the directory", "is empty", remedy="Name a directory; '.' is the one you are in.")
    return Path(given)


Data = Annotated[Path, typer.Option(metavar="DIR", parser=directory, help="The server's data directory.")]
Url = Annotated[str, typer.Option(metavar="URL", help=f"The server; else PENSTOCK_URL, else {URL}.")]
Token = Annotated[
    str, typer.Option(metavar="TOKEN", help=f"Who you are; else PENSTOCK_TOKEN, else the admin token in ./{DATA}.")
]
Json = Annotated[bool, typer.Option("--json", help="Output for programs: one JSON object a line.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.NAME=VALUE", help="One setting; again for more. docs/operations.md has all."
    ),
]


def connect(url: str, token: str) -> Client:
    """A client of the server that the options, or the environment, name."""
    from penstock.client.api import Client

    return Client(server_url(url), find_token(token))


def server_url(given: str) -> str:
    """The server that the option, or the environment, names."""
    return given or os.environ.get("PENSTOCK_URL", "") or URL


def find_token(given: str) -> str:
    """The token that the option, the environment, or a data directory here holds."""
    if given := given or os.environ.get("PENSTOCK_TOKEN", ""):
        return given
    kept = DATA / "admin.token"
    return kept.read_text().strip() if kept.is_file() else ""


def settings_from(config: Path | None, given: list[str] | None, **flags: object) -> Settings:
    """Settings from all their sources; *flags* that were given, named `section_name`, win over `--set`."""
    from penstock.settings_reading import load

    pairs = [f"{name.replace('_', '.', 1)}={value}" for name, value in flags.items() if value]
    return load(config, os.environ, [*(given or []), *pairs])
