"""Texts that give a number, a moment, a measure or an address.

Units are case-sensitive: `5m` is five minutes, and `5M` is refused rather than guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from penstock.errors import ConfigInvalid, InputInvalid
from penstock.limits import KEEP_LEAST_BYTES, KEEP_LEAST_SECONDS

_UNITS: Mapping[str, Mapping[str, float]] = {
    "s": {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400},
    "ms": {"ms": 1, "s": 1000},
    "bytes": {
        "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
        "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    },
}  # fmt: skip
MOST_WORKERS = 256
"""Workers of one machine: the log process has one core, and 256 is more than it can feed."""
_KEEP = "Write 30d or 50GiB."
_MEASURE = re.compile(r"\s*(-?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_whole(name: str, text: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """The whole number that *text* gives, in ASCII digits alone; `InputInvalid` about *name* if it gives none."""
    # Of other digits, as "²", `str.isdigit` says yes and `int` makes an error, as of thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most:
        return int(text)
    raise InputInvalid(name, f"{text[:40]!r} is not a whole number from {least} to {most}")


def parse_moment(name: str, text: str) -> datetime:
    """The moment that ISO text gives, in UTC if it names no zone; `InputInvalid` about *name* if it gives none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputInvalid(name, f"{text[:40]!r} is not like 2026-11-15T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def measure(text: str, unit: str) -> float:
    """The number that *text* gives, in *unit* (`s`, `ms`, `bytes`, or none); `ValueError` if it gives none."""
    found = _MEASURE.fullmatch(text)
    units = {"": 1.0, **_UNITS.get(unit, {})}
    if not found or found[2] not in units:
        raise ValueError(f"{text!r} is not a number" + (f" of {', '.join(units)[2:]}" if unit else ""))
    return float(found[1]) * units[found[2]]


def parse_address(listen: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigInvalid("server.listen", f"{listen!r} is not HOST:PORT", remedy="Write it like 127.0.0.1:8800.")
    return host.strip("[]"), int(port)


def parse_workers(workers: str) -> int:
    """How many processes have connections: a number, or `auto` for as many as there are cores."""
    if workers == "auto":
        return len(os.sched_getaffinity(0))
    if not workers.isascii() or not workers.isdigit() or not 1 <= int(workers) <= MOST_WORKERS:
        why = f"{workers!r} is neither auto nor a number from 1 to {MOST_WORKERS}"
        raise ConfigInvalid("server.workers", why, remedy="Write --workers 4, or --workers auto for one on each core.")
    return int(workers)


def parse_keep(keep: str) -> tuple[float | None, int | None]:
    """Seconds or bytes to keep, of which one is None; both are when everything is kept."""
    if not keep:
        return None, None
    # A bare number could be either, and a wrong guess would delete data.
    if keep[-1].isalpha():
        with suppress(ValueError):
            return _at_least(KEEP_LEAST_SECONDS, measure(keep, "s"), keep), None
        with suppress(ValueError):
            return None, int(_at_least(KEEP_LEAST_BYTES, measure(keep, "bytes"), keep))
    raise ConfigInvalid("log.keep", f"{keep!r} is neither an age nor a size", remedy=_KEEP)


def _at_least(least: float, found: float, keep: str) -> float:
    if found < least:
        raise ConfigInvalid("log.keep", f"{keep!r} is less than 1s or 1KiB, and would empty the log", remedy=_KEEP)
    return found
