"""Events as they go onto wires: made once for all that get them, and kept while they are recent.

A fan-out makes an event's bytes for the first wire, and the others share them. A storm of reconnects asks
for the same recent events thousands of times: they are still here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from penstock.core.ledger import Ledger, Recipients
from penstock.core.matching import Interest, is_quick
from penstock.core.names import ROOMS, is_exact
from penstock.doors.sps.requests import Topics, first_room
from penstock.values import Entry
from penstock.wire.sps import Form, topic_of

Key = int | tuple[int, str | None]

WRITTEN: Final = 1024
"""Streams, and patterns, of which is known when an event went to many wires at once. Over it: a wire may break a
silence too early."""


class Audience(msgspec.Struct):
    """The attributes by which an entry is meant for some of a stream's readers only."""

    hid: str = ""
    tids: str = ""  # separated by commas


_EVERYBODY = Audience()


class Audiences:
    """Reads entries' attributes, once for all wires that look at the same one."""

    def __init__(self) -> None:
        self._id, self._audience = 0, _EVERYBODY

    def of(self, entry: Entry) -> Audience:
        """Whom *entry* is for. Attributes of other doors mean nothing here."""
        if entry.id != self._id:
            try:
                audience = msgspec.json.decode(entry.attributes, type=Audience) if entry.attributes else _EVERYBODY
            except msgspec.MsgspecError:
                audience = _EVERYBODY
            self._id, self._audience = entry.id, audience
        return self._audience


def is_plain(entry: Entry) -> bool:
    """Whether an entry is the same for everybody who reads its stream, and for ever."""
    return not entry.attributes and entry.expires_ms is None and entry.stream != ROOMS


class Run(msgspec.Struct, gc=False):
    """Neighbouring entries of one stream that were sent.

    The ledger records intervals of ids, and none may cover an entry that was not sent: one for another device of the
    same user, or of a room that was left in between. Indexes tell: they count the entries of a stream, so two entries
    are neighbours exactly when nothing lies between them.
    """

    stream: str
    first: int
    last: int
    index: int | None  # of the first entry; the parts of a large body have none, and continue whatever came before
    next_index: int = -1

    def continued_by(self, after: Run) -> bool:
        """Nothing of the stream lies between the two."""
        return after.stream == self.stream and (after.index is None or after.index == self.next_index)


def runs_of(entries: Iterable[Entry]) -> list[Run]:
    """Part entries into runs."""
    found: list[Run] = []
    run = _NO_RUN
    for entry in entries:
        index = entry.index
        if entry.stream == run.stream and (index is None or index == run.next_index):
            run.last = entry.id
        else:
            run = Run(entry.stream, entry.id, entry.id, index)
            found.append(run)
        if index is not None:
            run.next_index = index + 1
    return found


def join_runs(before: list[Run], after: list[Run]) -> list[Run]:
    """Both, as few runs as can be. The lists belong to all wires that were sent the same: neither is changed."""
    last, first = before[-1], after[0]
    if not last.continued_by(first):
        return before + after
    next_index = last.next_index if first.next_index < 0 else first.next_index
    return [*before[:-1], Run(last.stream, last.first, first.last, last.index, next_index), *after[1:]]


_NO_RUN = Run("", 0, 0, None)


class Together(msgspec.Struct):
    """Entries that go out together: what all wires write, and tell the ledger."""

    framed: bytes
    runs: list[Run]


class LastWritten:
    """When an event last went to many wires at once, by its stream and by the patterns that wires have.

    Patterns are noted when a wire begins to read by them: to look through all streams would take each wire a
    millisecond for each pattern.
    """

    def __init__(self) -> None:
        self._streams: dict[str, float] = {}  # the latest last
        self._patterns: dict[str, float] = {}
        self._watched: Counter[str] = Counter()  # how many wires have a pattern
        self._interest: Interest[str] = Interest()

    def watch(self, patterns: Topics) -> Topics:
        """Note from now on when something is written by these; those of them that `unwatch` is to be called with."""
        watched = tuple(
            one for one in patterns
            if not is_exact(one) and is_quick(one) and (one in self._watched or len(self._watched) < WRITTEN)
        )  # fmt: skip
        for one in watched:
            self._watched[one] += 1
            self._interest.add(one, one)
        return watched

    def unwatch(self, watched: Topics) -> None:
        """A wire reads by these no longer."""
        for one in watched:
            self._watched[one] -= 1
            if not self._watched[one]:
                del self._watched[one]
                self._patterns.pop(one, None)
                self._interest.remove(one, one)

    def note(self, stream: str, at: float) -> None:
        """An event of *stream* was written to many."""
        self._streams.pop(stream, None)
        self._streams[stream] = at
        if len(self._streams) > WRITTEN:
            del self._streams[next(iter(self._streams))]
        for pattern in self._interest.find(stream):
            self._patterns[pattern] = at

    def of(self, patterns: Topics) -> float:
        """When something was last written to all who want any of these; 0.0 if that was never, or is not known."""
        return max(self._streams.get(one) or self._patterns.get(one, 0.0) for one in patterns)


class EventFrames:
    """One form in one framing."""

    def __init__(
        self,
        form: Form,
        frame: Callable[[bytes], bytes],
        audiences: Audiences,
        ledger: Ledger,
        time: Callable[[], float],
        *,
        limit: int,
        limit_bytes: int,
    ) -> None:
        self.form, self._frame, self._audiences, self._ledger, self._time = form, frame, audiences, ledger, time
        self._limit, self._limit_bytes = limit, limit_bytes
        self._kept: dict[Key, bytes] = {}
        self._bytes = 0
        self.newest, self.framed, self.runs = 0, b"", runs_of(())  # the last event that came alone
        self._asked: Sequence[Entry] = ()
        self._together: Together | None = None
        self.last_written = LastWritten()
        self.anti_idle = frame(form.anti_idle)
        self.at = time()  # about when the last bytes were asked for: one look at the time for a whole fan-out

    def words(self, data: bytes) -> bytes:
        """A line such as `open` or `gap`, framed. Empty stays empty: an empty chunk would end the answer."""
        return self._frame(data) if data else b""

    def single(self, entry: Entry) -> bool:
        """Make ready what all wires write of one entry (`framed`, `runs`); False if it is not the same for all."""
        if not is_plain(entry):
            return False
        self.at = self._time()
        self.newest, self.framed, self.runs = entry.id, self._find(entry, ()), runs_of((entry,))
        return True

    def plain(self, entries: Sequence[Entry]) -> Together | None:
        """What all wires write of entries; None if it is not the same for all. A fan-out asks with the same object."""
        if entries is not self._asked:
            self._asked = entries
            self._together = self.together(entries, ()) if all(map(is_plain, entries)) else None
        return self._together

    def for_all(self, entries: tuple[Entry, ...]) -> bytes | None:
        """As `single` and `plain`: what all wires write of entries of one stream."""
        if len(entries) == 1:
            return self.framed if entries[0].id == self.newest or self.single(entries[0]) else None
        together = self.plain(entries)
        return None if together is None else together.framed

    def sent(self, entries: tuple[Entry, ...], recipients: Recipients) -> None:
        """All of these recipients were written just that."""
        stream = entries[0].stream
        self._ledger.sent_to_all(recipients, stream, entries[0].id, entries[-1].id)
        self.last_written.note(stream, self.at)

    def together(self, entries: Sequence[Entry], topics: Topics) -> Together:
        """What a wire that reads *topics* writes of entries, each in a frame of its own."""
        self.at = self._time()
        kept = self._kept
        framed = b"".join([kept.get(entry.id) or self._find(entry, topics) for entry in entries])
        return Together(framed, runs_of(entries))

    def _find(self, entry: Entry, topics: Topics) -> bytes:
        key: Key = entry.id
        tid = topic_of(entry.stream)
        if entry.stream == ROOMS:
            tid = first_room(self._audiences.of(entry).tids.split(","), topics)
            key = (entry.id, tid)
        framed = self._kept.get(key)
        if framed is None:
            framed = self.words(self.form.event(entry, tid))
            self._keep(key, framed)
        return framed

    def _keep(self, key: Key, framed: bytes) -> None:
        self._kept[key] = framed
        self._bytes += len(framed)
        while len(self._kept) > self._limit or self._bytes > self._limit_bytes:
            self._bytes -= len(self._kept.pop(next(iter(self._kept))))
