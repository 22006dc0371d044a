"""Planning of reads, as values: options in, ranges and offsets out. No I/O here.

Spark keeps an offset in its checkpoint and may come back to it after a restart with other options. A batch must
then be cut exactly as before: else rows that were written under its old cuts are written again under new ones. So an
offset carries the cuts of the batch that it ends: {"upto": 2000, "cuts": "0,1024,2000"}. Where a read went on without
ids that were trimmed before it came to them, it says which as well: {…, "cuts": "300,1024,2000", "lost": "0,300"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.errors import InputInvalid
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
class Cut:
    """The rows with ids in (lo, hi]: what one task reads, as often as it must."""

    lo: int
    hi: int


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


def offset_of(upto: int, cuts: Sequence[Cut] = (), lost: Cut | None = None) -> dict[str, str | int]:
    """The offset at *upto*, with the cuts of the batch that ends there, and the ids that were *lost* before these."""
    numbers = [cuts[0].lo, *(cut.hi for cut in cuts)] if cuts else []
    said = {"lost": f"{lost.lo},{lost.hi}"} if lost else {}
    return {"upto": upto, "cuts": ",".join(map(str, numbers)), **said}


def lost_before(after: int, begin: int) -> Cut | None:
    """What is missing between the end of the last batch and the first id that the log still has."""
    return Cut(after, begin) if begin > after else None


def position_of(offset: Mapping[str, str | int]) -> int:
    """The id that an offset stands for."""
    return int(offset["upto"])


def cuts_between(start: Mapping[str, str | int], end: Mapping[str, str | int]) -> list[Cut]:
    """The cuts of the batch from *start* to *end*, as they were when it was planned first."""
    if position_of(start) == position_of(end):
        return []
    lost, numbers = _numbers(end.get("lost", "")), _numbers(end["cuts"])
    reached = lost + (numbers[1:] if lost and numbers[:1] == lost[-1:] else numbers)
    if not reached or reached[0] != position_of(start) or reached[-1] != position_of(end):
        raise InputInvalid(
            "the checkpoint",
            f"holds a batch {end['cuts']} up to {position_of(end)}, but it begins at {position_of(start)}",
            remedy="It belongs to another consumer or server: begin with a new checkpoint and a new consumer name.",
        )
    return _cuts(numbers)


def cuts_given(text: str) -> list[Cut]:
    """The cuts of the option `cuts`: ids with commas, where the first slice begins and where each one ends."""
    parts = text.split(",")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputInvalid("option cuts", f"{text[:40]!r} is not a list of at least two ids")
    return _cuts([int(part) for part in parts])


def _numbers(text: str | int) -> list[int]:
    return [int(one) for one in str(text).split(",") if one]


def _cuts(numbers: Sequence[int]) -> list[Cut]:
    if any(hi <= lo for lo, hi in pairwise(numbers)):
        raise InputInvalid("cuts", f"{numbers} do not rise")
    return [Cut(lo, hi) for lo, hi in pairwise(numbers)]


def cuts_of(slices: Iterable[Mapping[str, int]]) -> list[Cut]:
    """The cuts of a plan."""
    return [Cut(one["lo"], one["hi"]) for one in slices]


def narrow(after: int, upto: int, bounds: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """The part of (after, upto] that comparisons of `id` leave: pairs like (">=", 17)."""
    for sign, value in bounds:
        if sign in (">", ">=", "="):
            after = max(after, value if sign == ">" else value - 1)
        if sign in ("<", "<=", "="):
            upto = min(upto, value - 1 if sign == "<" else value)
    return after, max(after, upto)


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
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise InputInvalid(f"option {name}", f"{text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


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
