"""The options of `format("penstock")`, checked: what a user may give, and what holds if he does not."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from penstock.errors import InputInvalid
from penstock.pipeline.source_offsets import Cut, cuts_given
from penstock.units import parse_whole
from penstock.wire.table_columns import NAMES

DEFAULT_PARTITIONS: Final = 2
MOST_PARTITIONS: Final = 1_000
MOST_WAIT: Final = 60
"""Seconds that the server lets anybody wait for news."""
_ID_END: Final = 2**63 - 1

READING: Final = frozenset(
    ("url", "token", "streams", "after", "upto", "since", "until", "columns", "partitions", "maxeventspertrigger",
     "maxbytespertrigger", "consumer", "startingposition", "wait", "cuts", "failondataloss", "history")
)  # fmt: skip
"""The options of a read, in lower case."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read, checked."""

    url: str
    token: str
    streams: str
    columns: tuple[str, ...]
    partitions: int
    after: int | None
    upto: int | None
    since: str
    until: str
    consumer: str
    position: str
    max_rows: int | None
    max_bytes: int | None
    wait: float
    cuts: tuple[Cut, ...]
    fail_on_data_loss: bool
    history: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check and convert the options of a read. `InputInvalid` names the one that is wrong."""
    options = known_options(given, READING)
    after, since = number_of(options, "after"), options.get("since", "")
    upto, until = number_of(options, "upto"), options.get("until", "")
    if after is not None and since:
        raise InputInvalid("options after and since", "exclude each other")
    if upto is not None and until:
        raise InputInvalid("options upto and until", "exclude each other")
    return ReadOptions(
        required(options, "url"),
        required(options, "token"),
        options.get("streams", ""),
        _columns(options.get("columns", "")),
        number_of(options, "partitions", least=1, most=MOST_PARTITIONS) or DEFAULT_PARTITIONS,
        after,
        upto,
        since,
        until,
        options.get("consumer", ""),
        options.get("startingposition", ""),
        number_of(options, "maxeventspertrigger", least=1),
        number_of(options, "maxbytespertrigger", least=1),
        _seconds(options, "wait", "5"),
        tuple(cuts_given(options["cuts"])) if options.get("cuts") else (),
        _flag(options, "failondataloss", "true"),
        _flag(options, "history", "false"),
    )


def start_of(options: ReadOptions) -> dict[str, str | int | bool]:
    """Where a streaming read begins, as the server takes it; without options, at the earliest entry."""
    given = [options.after is not None, bool(options.since), bool(options.position)]
    if given.count(True) > 1:
        raise InputInvalid("options after, since and startingPosition", "exclude each other")
    if options.after is not None:
        return {"id": options.after}
    if options.since:
        return {"time": options.since}
    if options.position not in ("", "earliest", "latest"):
        raise InputInvalid("option startingPosition", f"{options.position!r} is neither earliest nor latest")
    return {"position": options.position or "earliest", **({"history": True} if options.history else {})}


def known_options(given: Mapping[str, str], known: Set[str]) -> dict[str, str]:
    """Options by their names in lower case. Refuses any that is not *known*, nor added by Spark itself."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in known and name not in ("path", "checkpointlocation", "queryname"):
            raise InputInvalid(f"option {name}", f"is unknown; known are {', '.join(sorted(known))}")
    return options


def required(options: Mapping[str, str], name: str) -> str:
    """The option *name*; refuses to go on without it."""
    if not options.get(name):
        raise InputInvalid(f"option {name}", "is missing")
    return options[name]


def number_of(options: Mapping[str, str], name: str, *, least: int = 0, most: int = _ID_END) -> int | None:
    """The whole number that an option gives, if it is there."""
    text = options.get(name)
    return None if text is None else parse_whole(f"option {name}", text, least=least, most=most)


def _seconds(options: Mapping[str, str], name: str, default: str) -> float:
    text = options.get(name, default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= MOST_WAIT:
        raise InputInvalid(f"option {name}", f"{text[:40]!r} is not a number of seconds from 0 to {MOST_WAIT}")
    return seconds


def _flag(options: Mapping[str, str], name: str, default: str) -> bool:
    text = options.get(name, default).lower()
    if text not in ("true", "false"):
        raise InputInvalid(f"option {name}", f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _columns(text: str) -> tuple[str, ...]:
    if not text:
        return NAMES
    wanted = {name.strip() for name in text.split(",")}
    if unknown := wanted - set(NAMES):
        raise InputInvalid("option columns", f"{sorted(unknown)[0]!r} is not one of {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in wanted)
