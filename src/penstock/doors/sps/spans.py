"""What was sent to one device and not confirmed yet, as intervals of ids per stream.

The ledger speaks in intervals, and an interval must never cover an entry that was not sent: one for
another device of the same user, or one of a room that was left in between. Indexes tell: they count the
entries of a stream, so two entries belong to one interval exactly when nothing lies between them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.limits import UNCONFIRMED_SPANS
from penstock.values import Entry


class Span(msgspec.Struct, gc=False):
    """Neighbouring entries of one stream, by their ids."""

    stream: str
    first: int
    last: int
    next_index: int  # of the entry that would stretch it

    def take(self, entry: Entry) -> bool:
        """Stretch it by *entry*, if that is the next one of its stream."""
        if entry.stream != self.stream:
            return False
        if entry.index is not None:  # the parts of a large body have none, and follow their first
            if entry.index != self.next_index:
                return False
            self.next_index += 1
        self.last = entry.id
        return True


def span_of(entry: Entry) -> Span:
    """One entry."""
    return Span(entry.stream, entry.id, entry.id, 0 if entry.index is None else entry.index + 1)


def note(spans: list[Span], entry: Entry) -> None:
    """Add an entry that was sent. The span in use is the last one; at the limit the oldest goes."""
    for position in range(len(spans) - 1, -1, -1):
        if spans[position].take(entry):
            spans.append(spans.pop(position))
            return
    spans.append(span_of(entry))
    if len(spans) > UNCONFIRMED_SPANS:
        del spans[0]


def confirm(spans: Iterable[Span], upto: int) -> tuple[list[Span], list[Span]]:
    """Part spans at an id: what the receiver has confirmed by naming it, and what is left."""
    confirmed, left = [], []
    for span in spans:
        if span.first <= upto:
            confirmed.append(Span(span.stream, span.first, min(span.last, upto), span.next_index))
        if span.last > upto:
            left.append(Span(span.stream, max(span.first, upto + 1), span.last, span.next_index))
    return confirmed, left
