"""`token`, `keys`, `backup`, `restore`, `doctor`, `bench`, `test`: looking after a server and after Penstock itself."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.options import DATA, Config, Data, Json, Set, Token, Url, connect, settings_from
from penstock.cli.options import directory as chosen_directory
from penstock.errors import InputInvalid, NotFound

BENCH = Path(__file__).parents[3] / "bench"
_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def token(
    sub: Annotated[str, typer.Option(metavar="SUBJECT", help="Whom the token is for: a user, an app, a device.")],
    data: Data = DATA,
    publish: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Streams it may publish to; again for more.")
    ] = None,
    subscribe: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Streams it may read; again for more.")
    ] = None,
    grant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further right: pushers, emit, sessions, webpush, export, channels."),
    ] = None,
    ttl: Annotated[
        str, typer.Option(metavar="SECONDS", help="How long it is valid; 15m, 24h or 30d work, too.")
    ] = "1h",
) -> None:
    """Print a token (a JWT) for the server on that data directory.

    In a pattern '*' is one level and '>' is the rest. '>' alone covers everything but the streams of
    users and of Penstock itself.

    \b
    Somebody who may publish orders:
      ./penstock token --sub shop --publish '/orders/*'
    A browser that may listen to one room, for a day:
      ./penstock token --sub alice --subscribe /rooms/lobby --ttl 24h
    A job that may read everything and export it:
      ./penstock token --sub nightly --subscribe '>' --grant export --ttl 30d
    """
    from penstock.api.auth import KEYS_FILE, open_keys

    if not (data / KEYS_FILE).exists():  # so that a mistyped --data is noticed
        print(f"penstock: made new keys in {data}; a server on another directory refuses them", file=sys.stderr)
    keys = open_keys(data)
    print(keys.issue(sub, publish=_all(publish), subscribe=_all(subscribe), grants=_all(grant), ttl=_seconds(ttl)))


def keys(
    data: Data = DATA,
    rotate: Annotated[
        str, typer.Option(metavar="ALGORITHM", help="Put a new key in front: HS256, ES256 or EdDSA.")
    ] = "",
) -> None:
    """List the keys that sign and verify tokens, the newest first; with --rotate make a new one.

    New tokens are signed by the first key; older ones go on being accepted until their key is removed
    from keys.json. A running server takes the file up on SIGHUP.
    """
    from penstock.api.auth import open_keys

    found = open_keys(data)
    if rotate:
        found.rotate(rotate)
    for position, key in enumerate(found.stored):
        print(f"{key.kid}  {key.alg}  {'signs' if position == 0 else 'verifies'}")


def _all(given: list[str] | None) -> tuple[str, ...]:
    return tuple(given or ())


def _seconds(ttl: str) -> float:
    from penstock.units import measure

    try:
        seconds = measure(ttl, "s")
    except ValueError as error:
        raise InputInvalid("--ttl", str(error)) from None
    if seconds < 1:
        raise InputInvalid("--ttl", f"{ttl!r} would be over at once")
    return seconds


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
    print(msgspec.json.encode(answer).decode() if json else f"backed up to {directory}: {_words(answer)}")


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

    with _progress_of_bytes("restoring") as progress:
        manifest = put_back(directory, data, progress)
    said = f"restored {manifest.bytes:,} bytes up to id {manifest.last_id} into {data}"
    print(msgspec.json.encode(manifest).decode() if json else said)


@contextmanager
def _progress_of_bytes(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that follows (done, total), where somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _words(answer: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in answer.items())


def doctor(data: Data = DATA, config: Config = None, set: Set = None, json: Json = False) -> int:
    """Look for what is wrong around a server, and say what to do. Exit code 1 if something is.

    \b
    ./penstock doctor --data /var/lib/penstock
    """
    from penstock.cli.doctor import examine

    findings = examine(data, settings_from(config, set))
    for one in findings:
        if json:
            print(msgspec.json.encode(asdict(one)).decode())
        else:
            print(f"{_MARKS[one.status]}  {one.check:<11} {one.message}" + (f" — {one.remedy}" if one.remedy else ""))
    return 1 if any(one.status == "fail" for one in findings) else 0


def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="What to measure.")] = ""
) -> int:
    """Measure something against its floor in the same run.

    Everything after NAME goes to the benchmark; --json prints one object a line.

    \b
    ./penstock bench append --json
    """
    names = sorted(file.stem for file in BENCH.glob("[a-z]*.py")) if BENCH.is_dir() else []
    if not name:
        print("\n".join(names))
        return 0
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0)
        raise NotFound("benchmark", name, remedy=f"Did you mean {near[0]}?" if near else "There are none here.")
    sys.path.insert(0, str(BENCH.parent))
    return int(importlib.import_module(f"bench.{name}").main(context.args) or 0)


def run_tests(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Only lint, types and the fast group.")] = False,
    long: Annotated[bool, typer.Option("--long", help="The long tests, too.")] = False,
    times: Annotated[int, typer.Option(min=1, help="So often in a row, until a run fails.")] = 1,
    beside: Annotated[int, typer.Option(min=0, help="Processes that keep a core busy meanwhile.")] = 0,
    no_system: Annotated[bool, typer.Option("--no-system", help="Never install Debian packages.")] = False,
) -> int:
    """Run the test suite: lint and types, then the groups of tests, two at a time.

    Groups are check, fast, doors, bystander, faults, cluster, spark, browser. What follows them goes to pytest.

    A test over its limit (--limit SECONDS, 120 by default) is ended and has failed; so is a group at three times its
    budget. The run goes on with the next. A group that is over its budget and ends by itself is marked "over".

    \b
    ./penstock test
    ./penstock test --fast
    ./penstock test faults -- -k disk -x
    ./penstock test --times 10 --beside 2
    """
    from penstock.cli import suite

    if no_system:
        os.environ["PENSTOCK_NO_SYSTEM"] = "1"
    return suite.run_often(context.args, times, beside, only_fast=fast, long=long)


def add_to(app: typer.Typer) -> None:
    """Add this module's commands."""
    pass_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command()(token)
    app.command()(keys)
    app.command()(backup)
    app.command()(restore)
    app.command()(doctor)
    app.command(context_settings=pass_on)(bench)
    app.command("test", context_settings=pass_on)(run_tests)
