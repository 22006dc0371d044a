"""The ledger's batches as rows: Arrow, no frames, each within a task. Repeats are left out.

A node that got no answer from its log appends a batch again, under the same (node, epoch, sequence). The repeat may
come in a later turn. A node appends in order of its sequence, so a batch whose sequence is not above the highest one
before it is a repeat. Those highest ones are the *heads*; the record of the table keeps them beside its watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.iceberg.files import WrittenFile, arrow_schema, read_batches, write_file
from penstock.iceberg.store import FileStore
from penstock.pipeline.erased_rows import STREAM as ERASED
from penstock.pipeline.erased_rows import read_request
from penstock.pipeline.writing import rows_between
from penstock.wire.lake_files import LakeFile
from penstock.wire.ledger import CONFIRMED, check_batch

STREAM: Final = "/_ledger"
SYSTEM: Final = (STREAM, ERASED)
"""Streams whose entries something of ours must be able to read."""

BATCH: Final = "batch"
"""The state of the row that stands for a batch itself."""

MOST_HEADS: Final = 500
"""Epochs whose heads are kept: the newest ones. A repeat from an older epoch would count twice, but no node sends one
after 500 starts of servers."""

REASON_CHARACTERS: Final = 300
"""Of the reason why an entry cannot be read: it may quote the entry."""

AT_ONCE: Final = 50_000
"""Rows that are made at once, as a rule. More would be in memory for nothing."""

_SCHEMA: Final = arrow_schema("ledger")
_UNREADABLE: Final = arrow_schema("unreadable")
_OF_ROWS: Final = tuple(name for name in _SCHEMA.names if name not in ("door", "recipient"))


class EpochHead(NamedTuple):
    """The highest sequence in one epoch of a node, and the id of its entry."""

    sequence: int
    entry: int


Heads = Mapping[tuple[str, int], EpochHead]  # by node and epoch
Batch = tuple[int, str, int, int]
_COLUMNS: Final = ("entry", "node", "epoch", "sequence")  # of a batch
LOOKED_AT: Final = (*_COLUMNS, "state")
"""The columns that `batches_in` wants."""


# ── decoding ───────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class BatchRows:
    """Rows of `ledger` in the making. A batch's records become columns; none of them is an object of Python."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)  # each for all recipients of a group
    who: list[Sequence[str]] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)  # of each row: numbers of `who`
    size: int = 0

    def add(self, entry: int, body: bytes) -> None:
        """Add the rows of one batch, its own first. `ValueError`, and nothing is added, if it cannot be read."""
        checked = check_batch(body)
        batch, base = checked.batch, len(self.who)
        own = (entry, batch.node, batch.epoch, batch.sequence, batch.mark, batch.lost)
        self._put_one((*own, None, BATCH, "", "", 0, 0, "", "", 0, None), ("", ""))
        for (ms, state, reason, stream, first, last, _), group in checked.rows:
            row = (*own, ms * 1000, state, reason, stream, first, last, "", "", 0, None)
            self._put(row, numpy.frombuffer(group, numpy.uint32) + (base + 1))
        self.who += checked.who
        for ms, state, reason, door, recipient, key, month, number, expires in checked.items:
            until = None if expires is None else expires * 1000
            self._put_one((*own, ms * 1000, state, reason, "", 0, 0, key, month, number, until), (door, recipient))

    def _put(self, row: tuple[Any, ...], group: Any) -> None:
        self.rows.append(row)
        self.groups.append(group)
        self.size += len(group)

    def _put_one(self, row: tuple[Any, ...], who: Sequence[str]) -> None:
        self._put(row, (len(self.who),))
        self.who.append(who)

    def arrow(self) -> pa.RecordBatch:
        which = pa.array(numpy.repeat(numpy.arange(len(self.rows)), [len(one) for one in self.groups]))
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(_OF_ROWS)
        made = {
            name: pa.array(list(column), _SCHEMA.field(name).type).take(which)
            for name, column in zip(_OF_ROWS, values, strict=True)
        }
        whom = pa.array(numpy.concatenate([numpy.empty(0, numpy.int64), *self.groups]).astype(numpy.int64))
        for number, name in enumerate(("door", "recipient")):
            made[name] = pa.array([one[number] for one in self.who], pa.utf8()).take(whom)
        return pa.RecordBatch.from_arrays([made[name] for name in _SCHEMA.names], schema=_SCHEMA)


def decode(entries: Iterable[pa.RecordBatch], unreadable: list[tuple[int, str, str, int]]) -> Iterator[pa.RecordBatch]:
    """Entries (id, stream, body) of the system → rows of `ledger`: one for each batch, and one for each record in it.

    What cannot be read, there or in `/_erased`, is added to *unreadable*: entry, stream, reason, bytes.
    """
    made, added = BatchRows(), list[tuple[int, bytes]]()
    for piece in entries:
        for id, stream, body in zip(*(piece[name].to_pylist() for name in ("id", "stream", "body")), strict=True):
            try:
                if stream == STREAM:
                    made.add(id, body or b"")
                    added.append((id, body or b""))
                else:
                    read_request(body or b"")
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the others are to be read
                unreadable.append(_told(id, stream, error, body))
            if made.size >= AT_ONCE:
                yield from _finished(made, added, unreadable)
                made, added = BatchRows(), []
    yield from _finished(made, added, unreadable)


def _finished(
    made: BatchRows, added: Sequence[tuple[int, bytes]], unreadable: list[tuple[int, str, str, int]]
) -> Iterator[pa.RecordBatch]:
    """All rows. One batch that was taken for good, and is not, does not keep those of the others back."""
    try:
        yield made.arrow()
    except Exception:  # noqa: BLE001 - as above
        for id, body in added:
            alone = BatchRows()
            try:
                alone.add(id, body)
                rows = alone.arrow()
            except Exception as error:  # noqa: BLE001
                unreadable.append(_told(id, STREAM, error, body))
            else:
                yield rows


def _told(id: int, stream: str, error: Exception, body: bytes | None) -> tuple[int, str, str, int]:
    return id, stream, _printable(str(error) or type(error).__name__), len(body or b"")


def _printable(reason: str) -> str:
    """A reason may quote what nobody can encode."""
    return reason[:REASON_CHARACTERS].encode(errors="replace").decode()


def unreadable_rows(found: Sequence[tuple[int, str, str, int]]) -> pa.RecordBatch:
    """What could not be read, as rows of the table `unreadable`."""
    columns = [*zip(*found, strict=True)] if found else [()] * 4
    arrays = [pa.array(list(column), kind.type) for column, kind in zip(columns, _UNREADABLE, strict=False)]
    nothing = pa.nulls(len(found), pa.utf8())
    return pa.RecordBatch.from_arrays([*arrays, nothing, nothing], schema=_UNREADABLE)


@dataclass(frozen=True, slots=True)
class DecodedBatches:
    """What a task has made of files of `events`."""

    records: WrittenFile | None
    unreadable: WrittenFile | None
    batches: list[Batch]
    positions: int  # how many records say how far a recipient has come


@dataclass(frozen=True, slots=True)
class DecodeBatches:
    """What one task does: decode the batches in files of `events` with ids in (lo, hi]."""

    store: FileStore
    locations: tuple[str, ...]
    file: LakeFile  # of `ledger`

    def run(self) -> DecodedBatches:
        """Write the rows, and what cannot be read."""
        unreadable: list[tuple[int, str, str, int]] = []
        batches: list[Batch] = []
        confirmed: list[int] = []
        records = write_file(
            self.store, self.file, self._looked_at(decode(self._entries(), unreadable), batches, confirmed)
        )
        told = write_file(self.store, replace(self.file, table="unreadable"), [unreadable_rows(unreadable)])
        return DecodedBatches(records, told, batches, sum(confirmed))

    def _entries(self) -> Iterator[pa.RecordBatch]:
        for location in self.locations:
            for piece in read_batches(self.store, location, ("id", "stream", "kind", "body"), SYSTEM):
                inside = rows_between(piece, self.file.lo, self.file.hi)
                yield inside.filter(pc.equal(inside["kind"], "data"))

    def _looked_at(
        self, pieces: Iterator[pa.RecordBatch], batches: list[Batch], confirmed: list[int]
    ) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            batches += batches_in(piece)
            confirmed.append(pc.sum(pc.equal(piece["state"], CONFIRMED)).as_py() or 0)
            yield piece


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """What one task does: write a file of `ledger` again without the batches that are repeats."""

    store: FileStore
    location: str
    file: LakeFile
    repeats: frozenset[int]  # ids of their entries

    def run(self) -> WrittenFile | None:
        """None if nothing is left."""
        entries = pa.array(sorted(self.repeats), pa.int64())
        rows = read_batches(self.store, self.location)
        return write_file(
            self.store, self.file, (one.filter(pc.invert(pc.is_in(one["entry"], entries))) for one in rows)
        )


# ── repeats ────────────────────────────────────────────────────────────────────────────────────


def batches_in(rows: pa.RecordBatch) -> list[Batch]:
    """The batches that decoded rows are of."""
    found = rows.filter(pc.equal(rows["state"], BATCH))
    return list(zip(*(found[name].to_pylist() for name in _COLUMNS), strict=True))


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
