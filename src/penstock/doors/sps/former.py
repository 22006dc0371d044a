"""What nodes that are gone have sent and never heard confirmed, read back from the ledger.

A wire remembers what it sent (`spans.py`) as long as its server lives. After that the ledger knows: a batch has
rows, each an interval of one stream and the devices it was sent to. A device is kept as the numbers of its rows.

    rows    0: /rooms/earth 17–17    1: /users/42 19–22    2: /rooms/earth 24–30   …
    of      42/phone → 0, 1, 2       43 → 0, 2             …

Batches may be taken in any order: what a device has confirmed since is one id, below which nothing is left to confirm.

A crash takes the last moments of the ledger with it (`ledger.flush_ms`). `Window` is where entries are of which it may
have known; `witness.py` says who is believed about them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from penstock.core.ledger import Batched
from penstock.limits import RECALLED_BYTES, UNCONFIRMED_WIRES

DOOR: Final = "sps"
ROW_BYTES: Final = 200
Life = tuple[str, int]  # a node and its epoch


class Interval(NamedTuple):
    """Entries of a stream that were sent one after the other."""

    stream: str
    first: int
    last: int


class Window(NamedTuple):
    """Ids between which a life may have sent what the ledger does not know."""

    after: int
    upto: int


class _End(msgspec.Struct):
    """The last batches of a life that has ended."""

    last: int = 0  # the id of the last batch
    before: int = 0  # of the one before: what was recorded up to then is in these two
    closed: bool = False


class Former:
    """Intervals that were sent, by device. Bounded: what is taken first is kept, so take the newest first."""

    def __init__(self) -> None:
        self._rows: list[Interval] = []
        self._of: dict[str, array[int]] = {}
        self._confirmed: dict[str, int] = {}
        self._ends: dict[Life, _End] = {}
        self._opened: dict[Life, int] = {}  # the id of a life's first batch
        self.size = 0  # bytes, about

    @property
    def full(self) -> bool:
        """Nothing more should be taken."""
        return self.size >= RECALLED_BYTES

    def take(self, id: int, batch: Batched, *, ended: bool) -> None:
        """Take a batch of the ledger; what was *sent* counts only in lives that have ended."""
        header = batch.header
        life = (header.node, header.epoch)
        if header.mark == "open":
            self._opened[life] = id
        if ended:
            self._note_end(self._ends.setdefault(life, _End()), id, closed=header.mark == "close")
        for state, interval, numbers in batch.rows():
            if state == "acked":
                self._take_confirmed(batch.who, numbers, interval[2])
            elif state == "sent" and ended:
                self._take_sent(batch.who, numbers, Interval(*interval))

    @staticmethod
    def _note_end(end: _End, id: int, *, closed: bool) -> None:
        end.closed = end.closed or closed
        if id > end.last:
            end.last, end.before = id, end.last
        else:
            end.before = max(end.before, id)

    def _take_confirmed(self, who: list[tuple[str, str]], numbers: array[int], upto: int) -> None:
        for number in numbers:
            door, name = who[number]
            if door == DOOR and self._confirmed.get(name, 0) < upto:
                self._confirmed[name] = upto

    def _take_sent(self, who: list[tuple[str, str]], numbers: array[int], interval: Interval) -> None:
        names = [name for door, name in map(who.__getitem__, numbers) if door == DOOR]
        row = len(self._rows)
        if names:
            self._rows.append(interval)
            self.size += ROW_BYTES + 4 * len(names)
        for name in names:
            of = self._of.get(name)
            if of is not None:
                of.append(row)
            elif len(self._of) < UNCONFIRMED_WIRES:
                self._of[name] = array("I", (row,))

    # ── a device comes back ───────────────────────────────────────────────────────────────────

    def concerns(self, name: str, upto: int, *, witness: bool) -> bool:
        """Whether there can be anything to confirm for a device; also by its own word, if it is a witness."""
        return name in self._of or (witness and self.window(name, upto) is not None)

    def confirm(self, name: str, upto: int) -> list[Interval]:
        """What a device was sent up to an id and had not confirmed: it has now."""
        confirmed = self._confirmed.get(name, 0)
        numbers = self._of.get(name)
        if not numbers or upto <= confirmed:
            return []
        rows = dict.fromkeys(self._rows[number] for number in numbers)  # one may have been sent again
        self._keep(name, numbers, upto)
        return [
            row if confirmed < row.first and row.last <= upto else _cut(row, confirmed, upto)
            for row in rows
            if row.last > confirmed and row.first <= upto
        ]

    def _keep(self, name: str, numbers: array[int], upto: int) -> None:
        self._confirmed[name] = upto
        left = array("I", [number for number in numbers if self._rows[number].last > upto])
        if left:
            self._of[name] = left
        else:
            del self._of[name]
        if not self._of:
            self._rows, self.size = [], 0

    def knows(self, name: str, id: int) -> bool:
        """Whether there is a record that a device was sent something with this id."""
        rows = (self._rows[number] for number in self._of.get(name, ()))
        return any(row.first <= id <= row.last for row in rows)

    def window(self, name: str, id: int) -> Window | None:
        """Where a device may have been sent an event that no record tells of, if *id* lies in such a place."""
        if id <= self._confirmed.get(name, 0):
            return None
        for (node, epoch), end in self._ends.items():
            upto = self._opened.get((node, epoch + 1), id)
            if not end.closed and end.before < id <= upto:
                return Window(end.before, upto)
        return None

    def witness(self, name: str, upto: int) -> None:
        """A device has confirmed what no record told of: once."""
        self._confirmed[name] = upto

    def lives(self) -> Iterator[Life]:
        """The lives that have ended and of which something was taken."""
        return iter(self._ends)


def _cut(row: Interval, after: int, upto: int) -> Interval:
    return Interval(row.stream, max(row.first, after + 1), min(row.last, upto))
