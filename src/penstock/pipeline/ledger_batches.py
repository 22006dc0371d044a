"""Which batches of the ledger have come before, and which cannot be read. Pure Arrow, no Spark.

A node that got no answer from its log appends a batch again, under the same (node, epoch, sequence); the repeat may
come in a later turn. A node appends in order of its sequence, so whatever is not above the highest one that came
before it is a repeat. Those highest ones are the *heads*; the record of the table keeps them beside its watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

BATCH: Final = "batch"
"""The state of the row that stands for a batch itself."""

UNREADABLE: Final = "unreadable"
"""The state of the row that stands for an entry of the system which cannot be read."""

MOST_HEADS: Final = 500
"""Epochs of nodes whose heads are kept, those heard of last. A repeat of an older one, which nobody sends any more
after 500 starts of servers, would count twice."""


class EpochHead(NamedTuple):
    """The highest sequence of one epoch of a node, and the entry that it came in."""

    sequence: int
    entry: int


Heads = Mapping[tuple[str, int], EpochHead]


@dataclass(frozen=True, slots=True)
class FileBatches:
    """What a file of decoded rows has: entries that repeat a batch, how many are unreadable, and the heads after it."""

    repeats: frozenset[int]
    unreadable: int
    heads: Heads


def look_through(path: Path, heads: Heads) -> FileBatches:
    """What a file has after all that the *heads* stand for. A row group at a time is in memory."""
    file, batches, unreadable = parquet.ParquetFile(path), [], 0
    for number in range(file.num_row_groups):
        states = file.read_row_group(number, columns=["state"])["state"]
        unreadable += pc.sum(pc.equal(states, UNREADABLE)).as_py() or 0
        rows = file.read_row_group(number, columns=["entry", "node", "epoch", "sequence"])
        batches += _tuples(rows.filter(pc.equal(states, BATCH)))
    return FileBatches(*_without_first(batches, heads, unreadable))


def _tuples(rows: pa.Table) -> list[tuple[int, str, int, int]]:
    return list(zip(*(rows[name].to_pylist() for name in ("entry", "node", "epoch", "sequence")), strict=True))


def _without_first(
    batches: Iterable[tuple[int, str, int, int]], heads: Heads, unreadable: int
) -> tuple[frozenset[int], int, Heads]:
    repeats, known = set(), dict(heads)
    for entry, node, epoch, sequence in sorted(batches):
        head = known.get((node, epoch))
        if head is not None and sequence <= head.sequence:
            repeats.add(entry)
        else:
            known[node, epoch] = EpochHead(sequence, entry)
    newest = sorted(known.items(), key=lambda one: one[1].entry)[-MOST_HEADS:]
    return frozenset(repeats), unreadable, dict(newest)


def heads_in(paths: Iterable[Path]) -> Heads:
    """The heads after all that these files of `ledger` hold: for a lake whose record has none yet."""
    heads: Heads = {}
    for path in paths:
        heads = look_through(path, heads).heads
    return heads


def kept(heads: Heads) -> list[list[Any]]:
    """Heads as a record has them."""
    return [[node, epoch, *head] for (node, epoch), head in heads.items()]


def read_kept(rows: Iterable[Iterable[Any]]) -> Heads:
    """Heads as a record has had them."""
    return {(node, epoch): EpochHead(sequence, entry) for node, epoch, sequence, entry in rows}
