"""Finds batches of the ledger that are repeats, and entries that cannot be read. Pure Arrow, no Spark.

A node that got no answer from its log appends a batch again, under the same (node, epoch, sequence). The repeat may
come in a later turn. A node appends in order of its sequence, so a batch whose sequence is not above the highest one
before it is a repeat. Those highest ones are the *heads*; the record of the table keeps them beside its watermark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.wire.ledger import CONFIRMED

BATCH: Final = "batch"
"""The state of the row that stands for a batch itself."""

UNREADABLE: Final = "unreadable"
"""The state of the row that stands for an entry of the system which cannot be read."""

MOST_HEADS: Final = 500
"""Epochs whose heads are kept: the newest ones. A repeat from an older epoch would count twice, but no node sends one
after 500 starts of servers."""


class EpochHead(NamedTuple):
    """The highest sequence in one epoch of a node, and the id of its entry."""

    sequence: int
    entry: int


Heads = Mapping[tuple[str, int], EpochHead]  # by node and epoch
Batch = tuple[int, str, int, int]
_COLUMNS: Final = ("entry", "node", "epoch", "sequence")  # of a batch
LOOKED_AT: Final = (*_COLUMNS, "state")
"""The columns that `look_through` wants."""


@dataclass(frozen=True, slots=True)
class SeenBatches:
    """What one file of decoded rows has."""

    batches: list[Batch]
    unreadable: int  # how many entries cannot be read
    positions: int  # how many records say how far a recipient has come


@dataclass(frozen=True, slots=True)
class FoundBatches:
    """What was found in the decoded rows of a slice."""

    repeats: frozenset[int]  # ids of entries that repeat a batch
    unreadable: int
    positions: int
    heads: Heads  # after these rows


def look_through(rows: Iterable[pa.RecordBatch]) -> SeenBatches:
    """Look through decoded rows. One piece at a time is in memory."""
    counts, batches = Counter[str](), list[Batch]()
    for piece in rows:
        for state in (UNREADABLE, CONFIRMED):
            counts[state] += pc.sum(pc.equal(piece["state"], state)).as_py() or 0
        found = piece.filter(pc.equal(piece["state"], BATCH))
        batches += zip(*(found[name].to_pylist() for name in _COLUMNS), strict=True)
    return SeenBatches(batches, counts[UNREADABLE], counts[CONFIRMED])


def find_in(seen: Sequence[SeenBatches], heads: Heads) -> FoundBatches:
    """What the files of a slice have, all together. They come after the batches of *heads*."""
    repeats, newest = find_repeats((batch for one in seen for batch in one.batches), heads)
    return FoundBatches(repeats, sum(one.unreadable for one in seen), sum(one.positions for one in seen), newest)


def find_repeats(batches: Iterable[Batch], heads: Heads) -> tuple[frozenset[int], Heads]:
    """The ids of entries that repeat a batch, and the heads after all of *batches*."""
    repeats, known = set(), dict(heads)
    for entry, node, epoch, sequence in sorted(batches):
        head = known.get((node, epoch))
        if head is not None and sequence <= head.sequence:
            repeats.add(entry)
        else:
            known[node, epoch] = EpochHead(sequence, entry)
    newest = sorted(known.items(), key=lambda one: one[1].entry)[-MOST_HEADS:]
    return frozenset(repeats), dict(newest)


def heads_to_rows(heads: Heads) -> list[list[Any]]:
    """Heads as JSON for a record."""
    return [[node, epoch, *head] for (node, epoch), head in heads.items()]


def heads_from_rows(rows: Iterable[Iterable[Any]]) -> Heads:
    """Heads from a record's JSON."""
    return {(node, epoch): EpochHead(sequence, entry) for node, epoch, sequence, entry in rows}
