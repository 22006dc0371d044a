"""`backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.options import Json, Token, Url, connect
from penstock.cli.options import directory as chosen_directory
from penstock.cli.output import follow_progress, show


def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", parser=chosen_directory, help="A new folder on the server's machine, outside its data."
        ),
    ],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Copy a running server's data into a folder, without stopping it.

    \b
    ./penstock backup /var/backups/penstock/monday
    """
    wanted = msgspec.json.encode({"directory": str(directory.absolute())})
    with connect(url, token) as client:
        answer = client.call("POST", "/v1/backup", body=wanted)
    words = ", ".join(f"{name} {value}" for name, value in answer.items())
    show(answer, f"backed up to {directory}: {words}", json)


def restore(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=chosen_directory, help="A folder that 'backup' has made.")
    ],
    data: Annotated[Path, typer.Option(metavar="NEW", parser=chosen_directory, help="An empty or new data directory.")],
    json: Json = False,
) -> None:
    """Put a backup into a new data directory, for a server to start on.

    The copy is compared with the backup's manifest first. The keys of tokens and the admin token are
    not in a backup: copy keys.json over, too, if tokens that are out there should stay valid.

    \b
    ./penstock restore /var/backups/penstock/monday --data ./restored
    ./penstock serve --data ./restored
    """
    from penstock.engines.sqlite.backup import restore as put_back

    with follow_progress("restoring") as progress:
        manifest = put_back(directory, data, progress)
    show(manifest, f"restored {manifest.bytes:,} bytes up to id {manifest.last_id} into {data}", json)
