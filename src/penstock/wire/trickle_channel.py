"""A Trickle channel without sockets: which segments there are, who may write them, how they end.

    seq   …  7   8   9   10  11          head = 10: the lowest number that nothing was written to yet
             └─window─┘  │   └ may be asked for ahead by a publisher, never further (no gaps)
                         └ readers wait here; `-1` is this one, `-2` the newest, `-N` is head - N + 1

A segment is open until it ends, for one of the reasons below; what has ended never changes. It may lose its
writer and get another: what that one sends is appended. The head never moves back.

    complete     its publisher said so                     deleted    somebody asked for its end
    reset        a publisher began anew behind it          abandoned  its writer left and nobody took over
    evicted      the window has moved past it              closed     the whole channel was closed
    oversized    its publisher sent more than one may hold

Bytes are kept once, framed as chunks of HTTP, whoever reads them: a reader is a position. Times come in as
arguments, in seconds of any steady clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import Conflict
from penstock.wire.http import chunk
from penstock.wire.trickle import SeqInvalid

COMPLETE, DELETED, RESET = "complete", "deleted", "reset"
ABANDONED, EVICTED, CLOSED, OVERSIZED = "abandoned", "evicted", "closed", "oversized"
TOO_SLOW: Final = "too slow for the window"

SILENT_SECONDS: Final = 2.0
"""A writer that sent nothing for so long may be replaced: a publisher that lost its connection comes back on
another one before the server learns that the first is dead."""

_SMALL, _JOINED = 16 * 1024, 64 * 1024  # small pieces are joined, up to that size, once the live readers have them


class WriteRefused(Conflict):
    """A segment cannot be written by this publisher, or not now."""

    def __init__(self, code: str, why: str, remedy: str, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.code, self.remedy, self.retry_after = code, remedy, retry_after


class Writer(Protocol):
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
        self.writer: Writer | None = None
        self.readers: dict[Watcher, None] = {}
        self._pieces: list[bytes] = []  # framed
        self._ends: list[int] = []  # the position after each piece

    @property
    def begun(self) -> bool:
        """It has bytes, or has ended without any: the head is past it."""
        return self.size > 0 or bool(self.end)

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
        """All bytes."""
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


class Channel:
    """The segments of one channel."""

    def __init__(
        self, name: str, keep: Keep, now: float, *, epoch: int = 1, mime: str = "", head: int = 0, gaps: bool = False
    ) -> None:
        self.name, self.keep, self.epoch, self.mime = name, keep, epoch, mime
        self.head = head
        self.touched = now  # when the last byte came
        self.closed = False
        self._gaps = gaps
        self._segments: dict[int, Segment] = {}
        self._leaving: dict[Segment, None] = {}  # out of the window, with readers who have not finished
        self.size = 0  # bytes of both
        self.slow = 0  # readers that were dropped

    def __iter__(self) -> Iterator[Segment]:
        return iter(sorted(self._segments.values(), key=lambda segment: segment.seq))

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def position(self, asked: int) -> int:
        """The seq that a reader means: negative numbers count back from the head."""
        return asked if asked >= 0 else max(0, self.head + asked + 1)

    def find(self, seq: int, now: float) -> Segment | None:
        """The segment, made to be waited for if it is the next; None if it is not here."""
        found = self._segments.get(seq)
        # The second is grace for two publishers' connections that arrive in the wrong order at the start.
        if found is None and not self.closed and (seq == self.head or (self.head == 0 and seq == 1)):
            found = self._segments[seq] = Segment(seq, now)
        return found

    @property
    def oldest(self) -> int:
        """The lowest seq that is here."""
        return min(self._segments, default=self.head)

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

    def is_over(self, segment: Segment) -> bool:
        """The channel was closed before this one had a byte, and none comes after it."""
        return self.closed and not segment.size and segment.seq >= self.head

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def take(self, asked: int, writer: Writer, now: float, *, reset: bool = False) -> Segment:
        """Give a segment to *writer*. Raises `WriteRefused`, or `SeqInvalid`, and nothing has changed."""
        if asked < -1:
            raise SeqInvalid(str(asked))
        seq = self.head if asked == -1 else asked
        found = self._segments.get(seq)
        self._check_writable(seq, found, now, reset)
        segment = found or self._segments.setdefault(seq, Segment(seq, now))
        if reset:
            for older in [one for one in self if one.seq < seq and not one.end]:
                self.finish(older, now, RESET)
        before, segment.writer, segment.touched = segment.writer, writer, now
        if before is not None:
            before.cut("replaced")
        return segment

    def _check_writable(self, seq: int, found: Segment | None, now: float, reset: bool) -> None:
        if found is None:
            if seq < self.head:
                raise self._ended(seq)
            if seq > self.head + 1 and not self._gaps:
                raise WriteRefused(
                    "seq_gap",
                    f"segment {seq} is beyond {self.head + 1}: numbers rise by one",
                    f"Go on with {self.head}, or set trickle.gaps.",
                )
        elif found.end:
            raise self._ended(seq)
        elif found.writer is not None and not reset and now - found.touched < SILENT_SECONDS:
            raise WriteRefused(
                "segment_busy",
                f"segment {seq} has a writer that is active",
                f"Come back when it was silent for {SILENT_SECONDS:g} s, or with Lp-Trickle-Reset.",
                int(SILENT_SECONDS),
            )

    def _ended(self, seq: int) -> WriteRefused:
        why = f"segment {seq} has ended; the next is {self.head}"
        return WriteRefused("segment_closed", why, f"Go on with {self.head}; GET next tells the number.")

    def write(self, segment: Segment, data: bytes, now: float) -> None:
        """Bytes of a segment that is open came from its writer."""
        if not segment.size:
            self._pass(segment.seq, now)
        segment.touched = self.touched = now
        self.size += len(data)
        segment.append(data)
        self._evict(now)

    def leave(self, segment: Segment, writer: Writer, now: float) -> None:
        """The writer is gone without saying that the segment is complete: another may go on."""
        if segment.writer is writer:
            segment.writer, segment.touched = None, now

    def finish(self, segment: Segment, now: float, reason: str = COMPLETE) -> None:
        """End a segment, if it is open."""
        if not segment.end:
            self._end(segment, now, reason)
            self._evict(now)

    def _end(self, segment: Segment, now: float, reason: str) -> None:
        if not segment.size and reason != CLOSED:
            self._pass(segment.seq, now)
            self.touched = now
        segment.end, segment.ended_at = reason, now
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
        self.finish(found, now, DELETED)
        return True

    def close(self, now: float) -> None:
        """End everything."""
        self.closed = True
        for segment in self:
            if not segment.end:
                self._end(segment, now, CLOSED)

    # ── what time does ────────────────────────────────────────────────────────────────────────

    def sweep(self, now: float, patience: float) -> None:
        """End what its writer has left, and forget what is too old."""
        for segment in self:
            if not segment.end and segment.writer is None and segment.seq < self.head:
                if now - segment.touched > patience:
                    self.finish(segment, now, ABANDONED)
            elif self.keep.seconds and segment.end and now - segment.ended_at > self.keep.seconds:
                self._let_go(segment, now)

    def _pass(self, seq: int, now: float) -> None:
        """The head moves past *seq*. A number that was left out may still come, so it can be waited for."""
        if seq == self.head + 1 and self.head not in self._segments:
            self._segments[self.head] = Segment(self.head, now)
        self.head = max(self.head, seq + 1)

    def _evict(self, now: float) -> None:
        """Keep the window within its bounds; the newest segment always stays."""
        if len(self._segments) <= self.keep.segments and self.size <= self.keep.bytes:
            return
        self._make_room()
        begun = [segment for segment in self if segment.seq < self.head]
        while len(begun) > 1 and (len(begun) > self.keep.segments or self.size > self.keep.bytes):
            self._let_go(begun.pop(0), now)
            self._make_room()

    def _make_room(self) -> None:
        """Give up readers of what has left the window, the oldest first, as far as the bytes demand it."""
        while self.size > self.keep.bytes and self._leaving:
            self._drop_readers(next(iter(self._leaving)))

    def _let_go(self, segment: Segment, now: float) -> None:
        """A segment leaves the window. Its readers may finish as long as there is room."""
        del self._segments[segment.seq]
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
