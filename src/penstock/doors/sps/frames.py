"""Events as they go onto wires: made once for all that get them, and kept while they are recent.

A fan-out makes an event's bytes for the first wire, and the others share them. A storm of reconnects asks
for the same recent events thousands of times: they are still here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.doors.sps.spans import NO_MARK
from penstock.doors.sps.topics import ROOMS, first_room
from penstock.values import Entry
from penstock.wire.sps import Form, topic_of

Key = int | tuple[int, str | None]


class Target(msgspec.Struct):
    """The attributes by which an entry is meant for some of a stream's readers only."""

    hid: str = ""
    tids: str = ""  # separated by commas


_NOBODY = Target()


class Targets:
    """Reads entries' attributes, once for all wires that look at the same one."""

    def __init__(self) -> None:
        self._id, self._target = 0, _NOBODY

    def of(self, entry: Entry) -> Target:
        """Whom *entry* is for. Attributes of other doors mean nothing here."""
        if entry.id != self._id:
            try:
                target = msgspec.json.decode(entry.attributes, type=Target) if entry.attributes else _NOBODY
            except msgspec.MsgspecError:
                target = _NOBODY
            self._id, self._target = entry.id, target
        return self._target


class Frames:
    """One form in one framing."""

    def __init__(
        self,
        form: Form,
        frame: Callable[[bytes], bytes],
        targets: Targets,
        time: Callable[[], float],
        *,
        limit: int,
        limit_bytes: int,
    ) -> None:
        self.form, self._frame, self._targets, self._time = form, frame, targets, time
        self._limit, self._limit_bytes = limit, limit_bytes
        self._kept: dict[Key, bytes] = {}
        self._bytes = 0
        self.newest, self.framed, self.mark = 0, b"", NO_MARK  # the last event that was asked for alone
        self.anti_idle = frame(form.anti_idle)
        self.at = time()  # about when the last bytes were asked for: one look at the time for a whole fan-out

    def words(self, data: bytes) -> bytes:
        """Words about the wire, ready to go out. An empty chunk would end the answer: it stays nothing."""
        return self._frame(data) if data else b""

    def encode(self, entries: Sequence[Entry], topics: tuple[str, ...]) -> bytes:
        """What goes onto a wire that reads *topics*, each event in a frame of its own."""
        if len(entries) > 1:
            self.at = self._time()
            return b"".join([self._kept.get(entry.id) or self._find(entry, topics) for entry in entries])
        entry = entries[0]
        if entry.id != self.newest:
            self.at = self._time()
            framed = self._find(entry, topics)
            if entry.stream == ROOMS:  # looks different to wires in different rooms
                return framed
            self.newest, self.framed = entry.id, framed
            self._make_mark(entry)
        return self.framed

    def _make_mark(self, entry: Entry) -> None:
        """Wires that ended at the mark before, which is most of them in a fan-out, need only look at that."""
        before, self.mark = self.mark, self.mark.mark(entry)
        before.before = None  # or all of them would hang together
        if before.continued_by(entry):
            self.mark.before = before

    def _find(self, entry: Entry, topics: tuple[str, ...]) -> bytes:
        key: Key = entry.id
        tid = topic_of(entry.stream)
        if entry.stream == ROOMS:
            tid = first_room(self._targets.of(entry).tids.split(","), topics)
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
