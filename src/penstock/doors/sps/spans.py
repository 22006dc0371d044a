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


class Mark(msgspec.Struct, gc=False):
    """An entry as the end of a span. In a fan-out all wires share one."""

    stream: str
    id: int
    next_index: int  # of the entry that would continue the span
    before: Mark | None = None  # the mark that this one continues, as long as it is the newest

    def continued_by(self, entry: Entry) -> bool:
        """Nothing of the stream lies between the two; the parts of a large body have no index."""
        return entry.stream == self.stream and (entry.index is None or entry.index == self.next_index)

    def mark(self, entry: Entry) -> Mark:
        """The end of the span when *entry* has continued it."""
        return Mark(entry.stream, entry.id, self.next_index if entry.index is None else entry.index + 1)


NO_MARK = Mark("", 0, -1)


class Span(msgspec.Struct, gc=False):
    """Neighbouring entries of one stream: the id of the first, and the last."""

    first: int
    end: Mark

    @property
    def stream(self) -> str:
        return self.end.stream

    @property
    def last(self) -> int:
        return self.end.id


class Run(msgspec.Struct, gc=False):
    """Entries of one stream that follow each other and were sent together."""

    first: Entry
    end: Mark


def runs(entries: Iterable[Entry], before: Mark) -> list[Run]:
    """Part entries into runs. *before* is what a part at the beginning belongs to: those have no index."""
    found: list[Run] = []
    stream, next_index = before.stream, before.next_index
    first = last = None
    for entry in entries:
        index = entry.index
        if first is None or last is None:
            first = entry
        elif entry.stream != stream or (index is not None and index != next_index):
            found.append(Run(first, Mark(stream, last.id, next_index)))
            first = entry
        if entry.stream != stream:
            stream, next_index = entry.stream, -1
        if index is not None:
            next_index = index + 1
        last = entry
    if first is not None and last is not None:
        found.append(Run(first, Mark(stream, last.id, next_index)))
    return found


def take_up(spans: list[Span], entry: Entry) -> Span | None:
    """Take the span out that *entry* continues, if one does."""
    for position in range(len(spans) - 1, -1, -1):
        if spans[position].end.continued_by(entry):
            return spans.pop(position)
    return None


def put_aside(spans: list[Span], span: Span) -> None:
    """Keep a span that others follow; at the limit the oldest goes."""
    spans.append(span)
    if len(spans) > UNCONFIRMED_SPANS:
        del spans[0]


def confirm(spans: Iterable[Span], upto: int) -> tuple[list[Span], list[Span]]:
    """Part spans at an id: what the receiver has confirmed by naming it, and what is left."""
    confirmed, left = [], []
    for span in spans:
        if span.first <= upto:
            confirmed.append(Span(span.first, Mark(span.stream, min(span.last, upto), span.end.next_index)))
        if span.last > upto:
            left.append(Span(max(span.first, upto + 1), span.end))
    return confirmed, left
