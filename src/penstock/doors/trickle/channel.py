"""A channel of this node, and a recorded one's way into the log.

Segments are appended in the order of their numbers, one append at a time. The stream is `/channels/<name>/<epoch>`, and
a segment's seq is its entry's index, always: a number that was given up is an empty entry with the reason in its
attributes, and every append says which index it expects. So a segment is never there twice, and a node that lost its
channel to another one finds out at its next append. A body above the limit of an entry is followed by part entries in
the same batch.

What readers got of a segment before it had an id is noted until it has one; then the ledger hears of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from penstock.core.ledger import Ledger, Recipient
from penstock.core.log import Log
from penstock.core.promise import Pending
from penstock.doors.trickle.cluster import ChannelRecord
from penstock.errors import PenstockError, PositionMismatch, Trimmed
from penstock.http.timers import Timed, Wheel
from penstock.limits import CONTENT_TYPE_BYTES, ENTRY_BYTES
from penstock.values import Appended, Batch, Draft, Entry, Expect, Kind
from penstock.wire import trickle
from penstock.wire.trickle_channel import COMPLETE, CUT, Channel, Segment

log = logging.getLogger("penstock.trickle")

RECORD_BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a recorded channel's segments that wait for the log. At it: its publishers are not read from."""

_RETRY_SECONDS = 1.0
_KNOWN_IDS = 1_000  # segments whose readers may still finish

Note = tuple[Recipient, str, str]
_COUNT = re.compile(r"[0-9]{1,3}")  # a batch has no more parts


class WaitingPublisher(Protocol):
    """Who sent a segment, and waits for the log."""

    seq: int

    def confirmed(self, error: Exception | None = None) -> None:
        """The segment is complete, and in the log if it goes there; or the log does not take it."""
        ...

    def want_more(self) -> None:
        """The log has caught up."""
        ...


class SegmentAttributes(msgspec.Struct):
    """What a segment's entry says besides its body."""

    content_type: str = msgspec.field(default="", name="content-type")
    parts: str = "0"  # entries that follow it with the rest of the body
    end: str = COMPLETE


def attributes_of(entry: Entry) -> SegmentAttributes:
    """The attributes that matter here; others are somebody else's.

    Whoever may publish can write anything into them. What could not be of a recorded segment counts for nothing:
    the entry is then data like any other.
    """
    try:
        said = msgspec.json.decode(entry.attributes or "{}", type=SegmentAttributes)
    except msgspec.MsgspecError:
        return SegmentAttributes()
    text = said.content_type
    if len(text) > CONTENT_TYPE_BYTES or not (text.isascii() and text.isprintable()):
        said.content_type = ""
    if not _COUNT.fullmatch(said.parts):
        said.parts = "0"
    return said


def is_cut(entry: Entry) -> bool:
    """It is a segment that was recorded although it never was whole."""
    return entry.stream.startswith(trickle.CHANNELS) and attributes_of(entry).end in CUT


async def size_in_log(log: Log, stream: str, seq: int) -> int | None:
    """Bytes of a segment that the log has whole."""
    try:
        entries = (await log.read_index(stream, seq, limit=1)).entries
    except Trimmed:
        return None
    if not entries or entries[0].index != seq or is_cut(entries[0]):
        return None
    return len(entries[0].body) + sum(len(part.body) for part in entries[1:] if part.kind is Kind.PART)


def drafts(stream: str, body: bytes, mime: str, end: str) -> tuple[Draft, ...]:
    """A segment as entries of one batch."""
    pieces = [body[at : at + ENTRY_BYTES] for at in range(0, len(body), ENTRY_BYTES)] or [b""]
    plain = msgspec.to_builtins(SegmentAttributes())
    about = msgspec.to_builtins(SegmentAttributes(mime, str(len(pieces) - 1), end))
    said = {name: value for name, value in about.items() if value != plain[name]}
    first = Draft(stream, pieces[0], attributes=msgspec.json.encode(said).decode() if said else "")
    return (first, *(Draft(stream, piece, kind=Kind.PART) for piece in pieces[1:]))


class Recorder(Timed):
    """Appends what has ended."""

    def __init__(
        self, target: Log, ledger: Ledger, wheel: Wheel, stream: str, mime: str, head: int, taken: Callable[[], None]
    ) -> None:
        super().__init__()
        self._log, self._ledger, self._wheel = target, ledger, wheel
        self.stream, self._mime = stream, mime
        self.next = head  # the seq that the log wants next
        self._taken = taken  # called when the stream turns out to be another's
        self._waiting: dict[int, Segment] = {}  # ended, and not in the log
        self._bytes = 0
        self._publishers: dict[int, WaitingPublisher] = {}  # who waits for the log, and for room
        self._writing: dict[WaitingPublisher, None] = {}
        self._ids: dict[int, int] = {}
        self._notes: dict[int, list[Note]] = {}
        self._appending = False
        self._resting = asyncio.Event()

    @property
    def full(self) -> bool:
        """As much waits for the log as may."""
        return self._bytes >= RECORD_BACKLOG_BYTES

    def waiting(self, seq: int) -> Segment | None:
        """A segment that is out of the window and not in the log yet."""
        return self._waiting.get(seq)

    def take(self, segment: Segment) -> None:
        """A segment has ended: it is the log's next, or waits for those before it."""
        self._waiting[segment.seq] = segment
        self._bytes += segment.size
        self._go_on()

    def confirm(self, publisher: WaitingPublisher) -> None:
        """Tell *publisher* when its segment is in the log."""
        if publisher.seq < self.next:
            publisher.confirmed()
        else:
            self._publishers[publisher.seq] = publisher

    def want_room(self, publisher: WaitingPublisher) -> None:
        """Tell *publisher* when there is room again."""
        self._writing[publisher] = None

    def note(self, seq: int, note: Note) -> None:
        """Something happened to a segment for a reader."""
        if (id := self._ids.get(seq)) is not None:
            self._tell(id, note)
        elif seq >= self.next:
            self._notes.setdefault(seq, []).append(note)

    async def emptied(self) -> None:
        """Wait until everything that has ended is in the log."""
        while self._appending or self.next in self._waiting:
            self._resting.clear()
            await self._resting.wait()

    def expired(self) -> None:
        self._go_on()

    def close(self) -> None:
        """Append no more."""
        self._wheel.forget(self)

    def _go_on(self) -> None:
        segment = self._waiting.get(self.next)
        if self._appending or segment is None:
            self._resting.set()
            return
        self._appending = True
        self._log.append(self._batch(segment)).add_done_callback(self._appended)

    def _batch(self, segment: Segment) -> Batch:
        entries = drafts(self.stream, segment.body(), self._mime, segment.end)
        return Batch(entries, expect=Expect(self.stream, index=segment.seq))

    def _appended(self, appending: Pending[Appended]) -> None:
        self._appending = False
        try:
            appended = appending.result()
        except Exception as error:  # noqa: BLE001 - whatever it is, publishers wait for a word
            self._failed(error)
        else:
            self._stored(appended.first.id)
            self._go_on()

    def _stored(self, id: int) -> None:
        seq = self.next
        self.next += 1
        self._bytes -= self._waiting.pop(seq).size
        self._ids[seq] = id
        if len(self._ids) > _KNOWN_IDS:
            del self._ids[next(iter(self._ids))]
        for note in self._notes.pop(seq, ()):
            self._tell(id, note)
        if (publisher := self._publishers.pop(seq, None)) is not None:
            publisher.confirmed()
        if self._writing and not self.full:
            waiting, self._writing = self._writing, {}
            for writer in waiting:
                writer.want_more()

    def _failed(self, error: BaseException) -> None:
        """The log takes nothing now: its publishers hear it, and we try again."""
        log.warning("trickle.not_recorded", extra={"stream": self.stream, "seq": self.next, "error": str(error)})
        publishers, self._publishers = self._publishers, {}
        for publisher in publishers.values():
            publisher.confirmed(error if isinstance(error, PenstockError) else RuntimeError(str(error)))
        if isinstance(error, PositionMismatch):
            self._waiting.clear()
            self._bytes = 0
            self._taken()
            self._resting.set()
        else:
            self._wheel.arm(self, _RETRY_SECONDS)

    def _tell(self, id: int, note: Note) -> None:
        who, state, reason = note
        if state == "sent":
            self._ledger.sent(who, self.stream, id, id)
        else:
            self._ledger.record(who, state, self.stream, id, id, reason=reason)


class LiveChannel(Channel):
    """A channel of this node, with its way into the log if it has one."""

    def __init__(self, record: ChannelRecord, now: float, *, head: int = 0, gaps: bool = False) -> None:
        super().__init__(
            record.name,
            record.keep,
            now,
            epoch=record.epoch,
            mime=record.mime,
            head=head,
            gaps=gaps and not record.record,
            anywhere=not record.record,  # there the seq is the index of the log
        )
        self.record = record
        self.recorder: Recorder | None = None
        self.passing = False  # made by a segment, which may yet be refused
        self.closed_at = 0.0
        self.newest_in_log: int | None = None  # bytes of the segment before the one that it was resumed with
        self._resumed_with = head

    def size_of(self, seq: int) -> int | None:
        """Also of the last segment before a restart: its publisher may not have heard that all of it was taken."""
        size = super().size_of(seq)
        return self.newest_in_log if size is None and seq == self._resumed_with - 1 else size

    def ended(self, segment: Segment) -> None:
        # Beyond the head there are only those that were waited for when the channel closed.
        if self.recorder is not None and segment.seq < self.head:
            self.recorder.take(segment)

    def confirm(self, publisher: WaitingPublisher) -> None:
        """Tell *publisher* that its segment is safe, when it is."""
        if self.recorder is None:
            publisher.confirmed()
        else:
            self.recorder.confirm(publisher)

    def note(self, seq: int, who: Recipient, state: str, reason: str) -> None:
        """Something happened to a segment for a reader; only what is recorded can be asked about."""
        if self.recorder is not None:
            self.recorder.note(seq, (who, state, reason))

    def find(self, seq: int, now: float) -> Segment | None:
        found = super().find(seq, now)
        return self.recorder.waiting(seq) if found is None and self.recorder is not None else found
