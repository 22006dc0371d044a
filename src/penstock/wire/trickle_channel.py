"""A Trickle channel without sockets: which segments there are, who may write them, how they end.

    seq   …  7   8   9   10  11 … 15     head = 10: the lowest number that nothing was written to yet
             └─window─┘  │   └───────┴ publishers may connect ahead, so far
                         └ readers wait here; `-1` is this one, `-2` the newest, `-N` is head - N + 1

To connect does not move the head; the first byte of a segment moves it past that segment. The byte is refused if it
would skip more than one number that no publisher is connected to; a single skipped number may still come, or is given
up. A channel without history begins at the first number that comes: its publisher may have started before the server.

A segment is open until it ends, for one of the reasons below; what has ended never changes. It may lose its
writer and get another: what that one sends is appended. The head never moves back. What a reader is told who asks for
a segment that is gone: `doors/trickle/door.py`.

    whole, or ended on somebody's word                     cut: nobody meant it to end there
    complete     its publisher said so                     abandoned  its writer left and nobody took over
    deleted      somebody asked for its end                evicted    the window has moved past it
    reset        a publisher began anew behind it          oversized  its publisher sent more than one may hold
    closed       the whole channel was closed

Bytes are kept once, framed as chunks of HTTP, whoever reads them: a reader is a position. Times come in as
arguments, in seconds of any steady clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import takewhile
from typing import Final, Protocol

from penstock.errors import Conflict
from penstock.limits import SEGMENT_MEMORY, SEGMENTS_AHEAD
from penstock.wire.http_chunks import chunk
from penstock.wire.trickle import SeqInvalid

COMPLETE, DELETED, RESET = "complete", "deleted", "reset"
ABANDONED, EVICTED, CLOSED, OVERSIZED = "abandoned", "evicted", "closed", "oversized"
CUT: Final = frozenset({ABANDONED, EVICTED, OVERSIZED})
"""Ends that must not look like one: what was sent of such a segment is not all there should have been."""
TOO_SLOW: Final = "too slow for the window"

SILENT_SECONDS: Final = 2.0
"""A writer that sent nothing for so long may be replaced: a publisher that lost its connection comes back on
another one before the server learns that the first is dead."""

_SMALL, _JOINED = 16 * 1024, 64 * 1024  # small pieces are joined, up to that size, once the live readers have them

_FORGOTTEN = 64  # numbers that may be left of segments that are gone


class WriteRefused(Conflict):
    """A segment cannot be written by this publisher, or not now."""

    def __init__(self, code: str, why: str, remedy: str, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.code, self.remedy, self.retry_after = code, remedy, retry_after


class SegmentWriter(Protocol):
    """Who writes a segment."""

    def cut(self, reason: str) -> None:
        """The segment was ended, or given to another writer (`replaced`), by somebody else."""
        ...


class Watcher(Protocol):
    """Who reads a segment."""

    def moved(self) -> None:
        """Bytes were added, or it has ended."""
        ...

    def dropped(self, reason: str) -> None:
        """It cannot be read to its end any more."""
        ...

    def renumbered(self, segment: Segment) -> None:
        """What was waited for will not come: the channel begins with *segment*, whose first byte is about to."""
        ...


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of a channel is kept for those who come late."""

    segments: int
    bytes: int
    seconds: float  # 0 is for ever


class Segment:
    """One segment: bytes that only grow, until it ends."""

    __slots__ = ("_ends", "_pieces", "end", "ended_at", "evicted", "readers", "seq", "size", "touched", "writer")

    def __init__(self, seq: int, now: float) -> None:
        self.seq, self.touched = seq, now  # when its writer last gave a sign of life
        self.size = 0
        self.end = ""  # why it has ended; empty while it is open
        self.ended_at = now
        self.evicted = False
        self.writer: SegmentWriter | None = None
        self.readers: dict[Watcher, None] = {}
        self._pieces: list[bytes] = []  # framed
        self._ends: list[int] = []  # the position after each piece

    @property
    def begun(self) -> bool:
        """It has bytes, or has ended without any: the head is past it."""
        return self.size > 0 or bool(self.end)

    @property
    def cut(self) -> bool:
        """It has ended, and is not whole."""
        return self.end in CUT

    def append(self, data: bytes) -> None:
        """Add bytes and wake the readers."""
        self.size += len(data)
        self._pieces.append(chunk(data))
        self._ends.append(self.size)
        for reader in list(self.readers):
            reader.moved()
        if len(data) < _SMALL:
            self._join_small_pieces()

    def piece(self, at: int) -> tuple[bytes, int]:
        """Bytes from position *at* on, framed as a chunk, and the position after them. There must be some."""
        place = bisect_right(self._ends, at)
        framed, end = self._pieces[place], self._ends[place]
        begin = self._ends[place - 1] if place else 0
        return (framed if at == begin else chunk(content(framed)[at - begin :])), end

    def body(self) -> bytes:
        return b"".join(content(piece) for piece in self._pieces)

    def wake(self) -> None:
        """Tell the readers that it has ended."""
        for reader in list(self.readers):
            reader.moved()

    def _join_small_pieces(self) -> None:
        """Keep the pieces few: a byte that came alone would be kept at fifty times its size."""
        pieces, ends = self._pieces, self._ends
        while len(pieces) > 1 and len(pieces[-2]) <= min(2 * len(pieces[-1]), _JOINED - len(pieces[-1])):
            last = content(pieces.pop())
            pieces[-1] = chunk(content(pieces[-1]) + last)
            del ends[-2]


def content(framed: bytes) -> bytes:
    """The bytes inside one chunk."""
    return framed[framed.index(b"\n") + 1 : -2]


def _in_order(segments: Iterable[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.seq)


class Channel:
    """The segments of one channel."""

    def __init__(
        self, name: str, keep: Keep, now: float, *, epoch: int = 1, mime: str = "", head: int = 0,
        gaps: bool = False, anywhere: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.keep, self.epoch, self.mime = name, keep, epoch, mime
        self.head = head
        self._blank = anywhere and not head  # nothing was ever written: it begins at the number that comes
        self.touched = now  # when the last byte came
        self.closed = False
        self._gaps = gaps
        self._segments: dict[int, Segment] = {}
        self._numbers: list[int] = []  # a heap of theirs, with some that were forgotten
        self._ahead: set[int] = set()  # those of them that the head is not past: connected to, or waited for
        self._unended: set[Segment] = set()  # those of them that are open
        self._past: dict[Segment, None] = {}  # and those that have ended, in that order
        # Out of the window, with readers who have not finished. The first is taken again and again: in a plain
        # dict each look for it would pass over all that were taken before it.
        self._leaving: OrderedDict[Segment, None] = OrderedDict()
        self.size = 0  # bytes of both
        self.slow = 0  # readers that were dropped

    def __iter__(self) -> Iterator[Segment]:
        return iter(_in_order(self._segments.values()))

    @property
    def memory(self) -> int:
        """Bytes that it takes: those of its segments, and what each segment costs beside them."""
        return self.size + SEGMENT_MEMORY * (len(self._segments) + len(self._leaving))

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def position(self, asked: int) -> int:
        """The seq that a reader means: negative numbers count back from the head."""
        return asked if asked >= 0 else max(0, self.head + asked + 1)

    def find(self, seq: int, now: float) -> Segment | None:
        """The segment, made to be waited for if it is the next; None if it is not here."""
        found = self._segments.get(seq)
        # The second is grace for two publishers' connections that arrive in the wrong order at the start.
        if found is None and not self.closed and (seq == self.head or (self.head == 0 and seq == 1)):
            found = self._make(seq, now)
        return found

    def _make(self, seq: int, now: float) -> Segment:
        made = self._segments[seq] = Segment(seq, now)
        self._unended.add(made)
        heappush(self._numbers, seq)
        if seq >= self.head:
            self._ahead.add(seq)
        return made

    @property
    def oldest(self) -> int:
        """The lowest seq that is here.

        Found without a look at all of them: a large segment may take the place of ten thousand small ones.
        """
        numbers = self._numbers
        while numbers and numbers[0] not in self._segments:
            heappop(numbers)
        return numbers[0] if numbers else self.head

    def size_of(self, seq: int) -> int | None:
        """Bytes of a segment that is here."""
        found = self._segments.get(seq)
        return None if found is None else found.size

    def release(self, segment: Segment, reader: Watcher) -> None:
        """A reader needs the segment no longer."""
        segment.readers.pop(reader, None)
        if segment.evicted and not segment.readers and segment in self._leaving:
            del self._leaving[segment]
            self.size -= segment.size
        self._drop_unused(segment)

    @property
    def unused(self) -> bool:
        """Nothing was ever written to it, and nobody is connected."""
        return self._blank and not self._segments

    def is_over(self, segment: Segment) -> bool:
        """The channel was closed before this one had a byte, and none comes after it."""
        return self.closed and not segment.size and segment.seq >= self.head

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def take(self, asked: int, writer: SegmentWriter, now: float, *, reset: bool = False) -> Segment:
        """Give a segment to *writer*. Raises `WriteRefused`, or `SeqInvalid`, and nothing has changed."""
        if asked < -1:
            raise SeqInvalid(str(asked))
        seq = self.head if asked == -1 else asked
        found = self._segments.get(seq)
        self._check_writable(seq, found, now, reset)
        segment = found or self._make(seq, now)
        if reset:
            for older in _in_order(one for one in self._unended if one.seq < seq):
                self._give_up(older, now, RESET, keep=self._blank)
        before, segment.writer, segment.touched = segment.writer, writer, now
        if before is not None:
            before.cut("replaced")
        return segment

    def _check_writable(self, seq: int, found: Segment | None, now: float, reset: bool) -> None:
        if found is None:
            if seq < self.head:
                raise self._ended(seq)
            if not (self._gaps or self._is_near(seq)):
                raise self._gap(seq)
        elif found.end:
            raise self._ended(seq)
        elif found.writer is not None and not reset and now - found.touched < SILENT_SECONDS:
            raise WriteRefused(
                "segment_busy",
                f"segment {seq} has a writer that is active",
                f"Come back when it was silent for {SILENT_SECONDS:g} s, or with Lp-Trickle-Reset.",
                int(SILENT_SECONDS),
            )

    def _is_near(self, seq: int) -> bool:
        """A publisher may connect to it."""
        if self._blank:  # to any, as long as they are few
            return sum(self._segments[one].writer is not None for one in self._ahead) <= SEGMENTS_AHEAD
        return seq <= self.head + SEGMENTS_AHEAD

    def _gap(self, seq: int) -> WriteRefused:
        why = f"numbers from {self.head} on would be left out before segment {seq}: they rise by one"
        return WriteRefused("seq_gap", why, f"Go on with {self.head}, or set trickle.gaps.")

    def _left_out(self, seq: int) -> int:
        """How many numbers before *seq* have no byte and nobody who is connected to them."""
        connected = sum(one < seq and self._segments[one].writer is not None for one in self._ahead)
        return seq - self.head - connected

    def _ended(self, seq: int) -> WriteRefused:
        why = f"segment {seq} has ended; the next is {self.head}"
        return WriteRefused("segment_closed", why, f"Go on with {self.head}; GET next tells the number.")

    def write(self, segment: Segment, data: bytes, now: float) -> None:
        """Bytes of a segment that is open came from its writer. Raises `WriteRefused`, and nothing has changed."""
        if not segment.size:
            self._admit(segment)
            self._pass(segment.seq, now)
        segment.touched = self.touched = now
        self.size += len(data)
        segment.append(data)
        self._evict(now)

    def leave(self, segment: Segment, writer: SegmentWriter, now: float) -> None:
        """The writer is gone without saying that the segment is complete: another may go on."""
        if segment.writer is writer:
            segment.writer, segment.touched = None, now
            self._drop_unused(segment)

    def finish(self, segment: Segment, now: float, reason: str = COMPLETE) -> None:
        """End a segment, if it is open. Raises `WriteRefused` if it is empty and would make a gap."""
        if not segment.end:
            if reason == COMPLETE and not segment.size:
                self._admit(segment)
            self._end(segment, now, reason)
            self._evict(now)

    def _admit(self, segment: Segment) -> None:
        """Let a segment begin, unless that would make a gap; a channel without history begins there."""
        if self._gaps or self._left_out(segment.seq) <= 1:
            return
        if not self._blank:
            raise self._gap(segment.seq)
        self.head = segment.seq
        for before in [self._segments[seq] for seq in sorted(self._ahead) if seq < self.head]:
            if before.writer is None:
                self._forget(before)
                for reader in list(before.readers):
                    reader.renumbered(segment)

    def _give_up(self, segment: Segment, now: float, reason: str, *, keep: bool = False) -> None:
        """End a segment on somebody's word; one whose end would make a gap is only taken from its writer."""
        if segment.end or segment.size or not (keep or self._left_out(segment.seq) > 1):
            self.finish(segment, now, reason)
            return
        writer, segment.writer = segment.writer, None
        if writer is not None:
            writer.cut(reason)
        self._drop_unused(segment)

    def _drop_unused(self, segment: Segment) -> None:
        """Forget a segment ahead that nobody is connected to any more: there is no end of numbers to ask for."""
        if segment.seq >= self.head and not (segment.begun or segment.writer or segment.readers):
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        if self._segments.get(segment.seq) is segment:
            del self._segments[segment.seq]
            self._ahead.discard(segment.seq)
            self._unended.discard(segment)
            self._past.pop(segment, None)
            if len(self._numbers) > 2 * len(self._segments) + _FORGOTTEN:
                self._numbers = sorted(self._segments)

    def _end(self, segment: Segment, now: float, reason: str) -> None:
        if not segment.size and reason != CLOSED:
            self._pass(segment.seq, now)
            self.touched = now
        segment.end, segment.ended_at = reason, now
        if segment in self._unended:  # else the window has let go of it already
            self._unended.remove(segment)
            self._past[segment] = None
        writer, segment.writer = segment.writer, None
        if writer is not None and reason != COMPLETE:
            writer.cut(reason)
        self.ended(segment)
        segment.wake()

    def ended(self, segment: Segment) -> None:
        """A segment has ended; its readers hear it after this."""

    def delete(self, seq: int, now: float) -> bool:
        """End one segment on somebody's word; False if it is not here."""
        found = self._segments.get(seq)
        if found is None:
            return False
        self._give_up(found, now, DELETED)
        return True

    def close(self, now: float, reason: str = CLOSED) -> None:
        """End everything; *reason* is why what was begun ends, if nobody asked for it."""
        self.closed = True
        for segment in _in_order(self._unended):
            if not segment.end:  # a writer that is cut may end another
                self._end(segment, now, reason if segment.size else CLOSED)

    # ── what time does ────────────────────────────────────────────────────────────────────────

    def sweep(self, now: float, patience: float) -> None:
        """End what its writer has left, and forget what is too old.

        Looks at what is open and what is too old alone: it is called each second, and there may be a million others.
        """
        for segment in _in_order(one for one in self._unended if one.writer is None and one.seq < self.head):
            if now - segment.touched > patience:
                self.finish(segment, now, ABANDONED)
        if self.keep.seconds:
            for segment in list(takewhile(lambda one: now - one.ended_at > self.keep.seconds, self._past)):
                self._let_go(segment, now)

    def _pass(self, seq: int, now: float) -> None:
        """The head moves past *seq*. A number that was left out may still come, so it can be waited for."""
        if not self._gaps or seq == self.head + 1:
            for left_out in range(self.head, seq):
                if left_out not in self._segments:
                    self._make(left_out, now)
        self.head = max(self.head, seq + 1)
        self._ahead = {one for one in self._ahead if one >= self.head}
        self._blank = False

    def _evict(self, now: float) -> None:
        """Keep the window within its bounds; the newest segment always stays."""
        while (begun := len(self._segments) - len(self._ahead)) > self.keep.segments or self.size > self.keep.bytes:
            self._make_room()
            if begun <= 1 or (begun <= self.keep.segments and self.size <= self.keep.bytes):
                return
            self._let_go(self._segments[self.oldest], now)
            self._make_room()

    def _make_room(self) -> None:
        """Give up readers of what has left the window, the oldest first, as far as the bytes demand it."""
        while self.size > self.keep.bytes and self._leaving:
            self._drop_readers(next(iter(self._leaving)))

    def _let_go(self, segment: Segment, now: float) -> None:
        """A segment leaves the window. Its readers may finish as long as there is room."""
        self._forget(segment)
        segment.evicted = True
        if not segment.end:
            self._end(segment, now, EVICTED)
        if segment.readers:
            self._leaving[segment] = None
        else:
            self.size -= segment.size

    def _drop_readers(self, segment: Segment) -> None:
        for reader in list(segment.readers):
            self.slow += 1
            reader.dropped(TOO_SLOW)
            self.release(segment, reader)
