"""The states of the ledger, and its batches read with nothing but the standard library.

The ledger, `why`, the fold in Spark, the audit and the docs take the table of states, `STATES`, from here.

`core/ledger.py` writes them and describes the form; it also reads them, faster, for the server. Spark's workers
have none of the server's libraries, so this is knowingly a second reader; `pipeline/ledger_rows.py` makes rows of what
it finds. A property test holds those against what the server reads.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar


@dataclass(frozen=True, slots=True)
class LedgerState:
    """One thing that can be recorded of a delivery."""

    name: str
    rank: int
    final: bool
    meaning: str
    failed: bool = False  # somebody should look at it


STATES: Final = (
    LedgerState("acked", 1, True, "The recipient confirmed it."),
    LedgerState("dead", 2, True, "The recipient said that it is gone for good.", failed=True),
    LedgerState("dropped", 3, True, "It was given up; the reason says why.", failed=True),
    LedgerState("expired", 4, True, "Its time ran out before it was confirmed.", failed=True),
    LedgerState("lost", 5, True, "It was accepted, and storing it failed.", failed=True),
    LedgerState("moved", 6, True, "The item left this month and number; it waits under those that the reason names."),
    LedgerState("retried", 7, False, "An attempt failed; another follows.", failed=True),
    LedgerState("sent", 7, False, "It was written to the recipient's wire, or taken by its push service."),
    LedgerState("stored", 8, False, "It waits in the recipient's mailbox."),
    LedgerState("accepted", 9, False, "The server has promised to deliver it."),
)
"""When several states were recorded of one delivery, the lowest rank counts; of one rank the latest record, and of one
moment the name that is first in the alphabet: a failed attempt is recorded as `sent` and `retried` at once.
"""

FINAL: Final = tuple(state.name for state in STATES if state.final)
"""States after which nothing more happens to an entry, or to an item in its place (month and number)."""

FAILED: Final = tuple(state.name for state in STATES if state.failed)
"""States of a delivery that did not go well, or not yet."""

RANKS: Final = {state.name: state.rank for state in STATES}
UNKNOWN_RANK: Final = 1 + max(RANKS.values())
"""Of states that another version recorded."""
CONFIRMED: Final = "confirmed"
"""The state of a position: the recipient has everything that it was sent up to the record's `last`, in the record's
stream, or in all if it names none. It is told of what was `sent` as `acked`, and of nothing else."""

COVERED: Final = ("sent", "retried")
"""States that a position at or after the entry turns into `acked`: handed over, and nothing final was recorded."""

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what reads tables has no later times."""


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """What a batch says about itself."""

    node: str
    epoch: int
    sequence: int
    mark: str  # "open", "close", or empty
    lost: int  # records that were dropped while the log took nothing


def verdict(records: Iterable[tuple[Hashable, str, int]]) -> str:
    """What became of a delivery, from all its records: (place, state, time).

    The place is where an item waited (door, month, number), and the same for all records of an entry. A place that
    the item has left says no more than that it was accepted.
    """
    counting: dict[Hashable, tuple[int, int, str]] = {}
    for place, state, ms in records:
        record = (RANKS.get(state, UNKNOWN_RANK), -ms, state)
        counting[place] = min(record, counting.get(place, record))
    left = (RANKS["accepted"], 0, "accepted")
    return min(left if state == "moved" else (rank, ms, state) for rank, ms, state in counting.values())[2]


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A batch of which every record can be made: rows for all recipients of a group, and items."""

    batch: LedgerBatch
    who: list[Sequence[str]]  # door and recipient
    rows: list[tuple[list[Any], array[int]]]  # [ms, state, reason, stream, first, last, …], and numbers of `who`
    items: list[list[Any]]  # [ms, state, reason, door, recipient, key, month, number, expires]


def check_batch(body: bytes) -> CheckedBatch:
    """Read a batch. Raises `ValueError` for anything else: of one that is garbled somewhere, nothing is believed."""
    line, _, column = body.partition(b"\n")
    try:
        said = json.loads(line.decode())  # of bytes it takes halves of characters, too
        if b"\\u" in line:  # half a character can be escaped, and stands in no table
            json.dumps(said, ensure_ascii=False).encode()
        batch = LedgerBatch(said["node"], said["epoch"], said["sequence"], said.get("mark", ""), said.get("lost", 0))
        _demand(all(isinstance(text, str) for text in (batch.node, batch.mark)), "its node or mark is no text")
        _demand(all(map(_is_number, (batch.epoch, batch.sequence, batch.lost))), "its numbers are none")
        numbers = _numbers(column)
        _check_records(said, numbers)
        rows = list(with_recipients(said.get("rows", []), said.get("groups"), numbers))
        return CheckedBatch(batch, said.get("who", []), rows, said.get("items", []))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no ledger batch: {type(error).__name__} {error}") from error


Row = TypeVar("Row", bound=Sequence[object])


def with_recipients(
    rows: Sequence[Row], counts: Sequence[int] | None, numbers: array[int]
) -> Iterator[tuple[Row, array[int]]]:
    """Each row of a batch with its recipients, as numbers of those that the batch names.

    The one place that knows how rows refer to groups. *counts* are those of the groups, and a row ends with the number
    of its group; without them, as it was before there were groups, each row is one and ends with its count.
    """
    if counts is None:
        counts, which = [row[6] for row in rows], list(range(len(rows)))  # type: ignore[misc]
    else:
        which = [row[6] for row in rows]  # type: ignore[misc]
    groups = [numbers[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]
    return ((row, groups[group]) for row, group in zip(rows, which, strict=True))


def _check_records(said: dict[str, list[list[object]]], numbers: array[int]) -> None:
    """Whether every record can be made: so many recipients as the rows say, and each of them known."""
    who, rows, items = (said.get(name, []) for name in ("who", "rows", "items"))
    _demand(all(type(one) is list for one in (who, rows, items, *who)), "something else stands where a list should")
    for ms, state, reason, stream, first, last, count in rows:
        _demand(_is_time(ms), "the time of a row is none")
        _demand(all(isinstance(text, str) for text in (state, reason, stream)), "a row has something else than text")
        _demand(all(map(_is_number, (first, last, count))), "a row has something else than numbers")
    counts = said.get("groups")
    if counts is None:
        counts = [row[6] for row in rows]  # type: ignore[misc]
    else:
        _demand(all(map(_is_number, counts)), "the count of a group is no number")
        _demand(all(row[6] < len(counts) for row in rows), "the group of a row is none of its groups")  # type: ignore[operator]
    _demand(sum(counts) == len(numbers), "its groups and its column do not fit")  # type: ignore[arg-type]
    _demand(max(numbers, default=-1) < len(who), "a recipient is not among those that it names")
    for door, recipient in who:
        _demand(isinstance(door, str) and isinstance(recipient, str), "a recipient is no text")
    for ms, state, reason, door, recipient, key, month, number, expires in items:
        texts = (state, reason, door, recipient, key, month)
        _demand(_is_time(ms) and (expires is None or _is_time(expires)), "the time of an item is none")
        _demand(all(isinstance(text, str) for text in texts), "an item has something else than text")
        _demand(_is_number(number), "the number of an item is none")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"no ledger batch: {otherwise}")


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= LATEST_MS


def _numbers(column: bytes) -> array[int]:
    numbers = array("I", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
