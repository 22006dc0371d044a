"""Request bodies: where they end, who takes them, when the peer must wait, and how much all of them may hold.

The same budget bounds what peers have asked for and do not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.errors import Busy, PenstockError, TooLarge
from penstock.limits import BODIES_SHARE, BODY_BUFFER_BYTES, COUNTED_BODY_BYTES
from penstock.wire.http_chunks import ChunkDecoder
from penstock.wire.http_requests import RequestHead

_MANY_PIECES = 64  # chunks that came together: a peer that minds what becomes of each sends fewer
LEAST_SLICE, MOST_SLICE = 16 * 1024, 256 * 1024
"""Bytes of a chunked body that are taken before others have their turn. The least is 3 milliseconds of the smallest
chunks; it doubles as long as few chunks come in one, so that a film's segment takes no more turns than it must."""


class ByteBudget:
    """Bytes that one listener holds for its peers, shared among their addresses: `server.bodies_bytes` for example.

    A body of known length is counted whole before it is read, so a body that has begun can be finished. A chunked body
    is counted as it grows. An address without any counted body may always send one, within the limit of all; and a
    single body may be of any size while there is no other.
    """

    def __init__(self, setting: str, limit: int) -> None:
        self._setting, self._limit, self._share = setting, limit, limit // BODIES_SHARE
        self._by_address: dict[str, int] = {}
        self.held = 0

    def book(self, address: str, size: int, before: int = 0) -> None:
        """Count *size* more bytes of a body under an address, of which it has booked some *before*.

        Raises `Busy` where that is too much, and counts nothing. An empty address, a proxy's, has no share of its own.
        """
        own = self._by_address.get(address, 0)
        full = self.held > before and self.held + size > self._limit
        if full or (address and own > before and own + size > self._share):
            raise Busy(self._setting, self._limit)
        self._by_address[address] = own + size
        self.held += size

    def release(self, address: str, size: int) -> None:
        """These bytes are not held any more."""
        self.held -= size
        self._by_address[address] -= size
        if not self._by_address[address]:
            del self._by_address[address]


class Booking:
    """What one connection has booked."""

    __slots__ = ("_address", "_budget", "size")

    def __init__(self, budget: ByteBudget, address: str) -> None:
        self._budget, self._address = budget, address
        self.size = 0

    def grow(self, size: int) -> None:
        """Have *size* bytes booked at least; `Busy` where there is no room for them."""
        if size > self.size:
            self._budget.book(self._address, size - self.size, self.size)
            self.size = size

    def end(self) -> None:
        """Let all of it go."""
        if self.size:
            self._budget.release(self._address, self.size)
            self.size = 0


class Intake:
    """A body on its way in. What it holds is bounded by *limit*."""

    __slots__ = ("_decoder", "_left", "booking", "dropped", "held", "limit", "received", "slice", "stream",
                 "timeout")  # fmt: skip

    def __init__(self, head: RequestHead, limit: int, timeout: float | None) -> None:
        self._decoder = ChunkDecoder() if head.chunked else None
        self._left = head.length
        self.limit, self.timeout = limit, timeout
        self.received = 0
        self.slice = LEAST_SLICE if head.chunked else MOST_SLICE
        self.held = bytearray()  # what is collected of it; never a list of pieces, which may have a byte each
        self.booking: Booking | None = None  # under which a body of unknown length is counted as it grows
        self.stream: BodyStream | None = None  # who reads it, if it is not collected
        self.dropped = False  # nobody wants it

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; returns what follows the body once it has ended, None before that.

        Raises `PeerError` for broken framing, `TooLarge` over the limit, `Busy` where all bodies together are too much.
        """
        pieces: list[bytes] = []
        try:
            return self._cut(data, pieces) if self._decoder is None else self._decoder.feed(data, pieces)
        finally:
            self._take_all(pieces)

    def _cut(self, data: bytes, pieces: list[bytes]) -> bytes | None:
        piece = data[: self._left]
        pieces.append(piece)
        self._left -= len(piece)
        return None if self._left else data[len(piece) :]

    def _take_all(self, pieces: list[bytes]) -> None:
        """Take these pieces. Many small ones are joined first, so that each costs little."""
        many = len(pieces) > _MANY_PIECES
        self.slice = LEAST_SLICE if many else min(2 * self.slice, MOST_SLICE)
        if many or self.stream is None:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._take(piece)

    def _take(self, piece: bytes) -> None:
        self.received += len(piece)
        if self.received > self.limit:
            raise TooLarge("request body bytes", self.received, self.limit)
        if self.stream is not None:
            self.stream.put(piece)
        elif not self.dropped:
            if self.booking is not None and self.received > COUNTED_BODY_BYTES:
                self.booking.grow(self.received)
            self.held += piece


class BodySink(Protocol):
    """Takes a body as it comes."""

    @property
    def full(self) -> bool:
        """It cannot take more now; `BodyStream.resume` when it can."""
        ...

    def put(self, piece: bytes) -> None:
        """Take the next bytes."""
        ...

    def end(self, error: PenstockError | None) -> None:
        """No more comes: the body is complete, or broke off with *error*."""
        ...


class BodyStream:
    """A body as it comes in: kept until its handler names a sink."""

    __slots__ = ("_ended", "_error", "_pieces", "_sink", "_size", "_wanted")

    def __init__(self, wanted: Callable[[], None]) -> None:
        self._wanted = wanted  # called when more can be taken
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False
        self._error: PenstockError | None = None
        self._sink: BodySink | None = None

    @property
    def full(self) -> bool:
        """The handler must catch up before more is read from the peer."""
        return self._size >= BODY_BUFFER_BYTES if self._sink is None else self._sink.full

    def divert(self, sink: BodySink) -> None:
        """Give what is here and all that comes to *sink*."""
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._sink = sink
        for piece in pieces:
            sink.put(piece)
        if self._ended:
            sink.end(self._error)
        else:
            self._wanted()

    def resume(self) -> None:
        """The sink can take more."""
        self._wanted()

    def put(self, piece: bytes) -> None:
        if self._sink is not None:
            self._sink.put(piece)
            return
        self._pieces.append(piece)
        self._size += len(piece)

    def end(self, error: PenstockError | None = None) -> None:
        """No more comes: the body is complete, or broke off with *error*."""
        if not self._ended:
            self._ended, self._error = True, error
            if self._sink is not None:
                self._sink.end(error)
