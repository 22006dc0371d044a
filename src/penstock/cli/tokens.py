"""`token` and `keys`: who may do what, and what proves it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.options import DATA, Data
from penstock.errors import InputInvalid


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
