"""Batches of ledger records, read with nothing but the standard library.

`core/ledger.py` writes them and describes the form; it also reads them, faster, for the server. Spark's workers
have none of the server's libraries, so this is knowingly a second reader. A property test holds the two together.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CLOSED: Final = ("acked", "dead", "dropped", "expired", "lost", "moved")
"""States after which nothing more happens to an item. One that moved waits in another month, under another number."""


@dataclass(frozen=True, slots=True)
class LedgerBatch:
    """What a batch says about itself."""

    node: str
    epoch: int
    sequence: int
    mark: str  # "open", "close", or empty
    lost: int  # records that were dropped while the log took nothing


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One thing that happened to an interval of entries, or to an item, for one recipient."""

    ms: int
    state: str
    reason: str
    door: str
    recipient: str
    stream: str = ""
    first: int = 0
    last: int = 0
    key: str = ""
    month: str = ""
    number: int = 0
    expires_ms: int | None = None


def decode_batch(body: bytes) -> tuple[LedgerBatch, Iterator[LedgerRecord]]:
    """Read a batch: what it says about itself, and its records one by one.

    Raises `ValueError` for anything else than a batch.
    """
    line, _, column = body.partition(b"\n")
    try:
        said = json.loads(line)
        batch = LedgerBatch(said["node"], said["epoch"], said["sequence"], said.get("mark", ""), said.get("lost", 0))
        return batch, _records(said, _numbers(column))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no ledger batch: {error}") from error


def _numbers(column: bytes) -> array[int]:
    numbers = array("I", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _records(said: dict[str, list[list[object]]], numbers: array[int]) -> Iterator[LedgerRecord]:
    who, position = said.get("who", []), 0
    for ms, state, reason, stream, first, last, count in said.get("rows", []):
        for number in numbers[position : position + count]:  # type: ignore[operator]
            door, recipient = who[number]
            yield LedgerRecord(ms, state, reason, door, recipient, stream, first, last)  # type: ignore[arg-type]
        position += count  # type: ignore[operator]
    for ms, state, reason, door, recipient, key, month, number, expires in said.get("items", []):  # type: ignore[assignment]
        yield LedgerRecord(ms, state, reason, door, recipient, "", 0, 0, key, month, number, expires)  # type: ignore[arg-type]
