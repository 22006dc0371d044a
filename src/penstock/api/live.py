"""An open response that is fed from the log: what all doors with live wires have in common.

Between a feed (core) and an outlet (connection layer) stands one slotted object. It hands entries on,
stops the feed when the peer is gone, lets it read on when the peer has caught up, and tells the
ledger what the kernel has taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.feed import Feed, Taker
from penstock.core.ledger import Ledger, Recipient, Recipients
from penstock.http.output import Tap
from penstock.values import Entry


class Lines:
    """Entries as they go onto wires of one kind, made once for all who get the same ones."""

    def __init__(self, ledger: Ledger, encode: Callable[[Sequence[Entry]], bytes]) -> None:
        self._ledger, self._encode = ledger, encode
        self._newest: Sequence[Entry] = ()
        self._framed = b""

    def encode(self, entries: Sequence[Entry]) -> bytes:
        """What goes onto the wire for these entries. A fan-out gives the same object to all wires."""
        if entries is not self._newest and entries != self._newest:
            self._newest, self._framed = entries, self._encode(entries)
        return self._framed

    def for_all(self, entries: tuple[Entry, ...]) -> bytes:
        """As `encode`: it is the same for all."""
        return self.encode(entries)

    def sent(self, entries: tuple[Entry, ...], recipients: Recipients) -> None:
        """All of these recipients were written just that."""
        self._ledger.sent_to_all(recipients, entries[0].stream, entries[0].id, entries[-1].id)


class LiveWire:
    """The sink of one feed and the owner of one tap, an outlet or a WebSocket.

    Doors open the tap. *framing* turns entries into the bytes that go out, separators included.
    """

    __slots__ = ("_first", "_last", "_ledger", "_others", "_stream", "feed", "framing", "tap", "who")

    feed: Feed
    tap: Tap

    def __init__(self, who: Recipient, ledger: Ledger, framing: Lines) -> None:
        self.who, self._ledger, self.framing = who, ledger, framing
        # What was handed to the tap since its last flush: nearly always entries of one stream.
        self._stream, self._first, self._last = "", 0, 0
        self._others: dict[str, tuple[int, int]] | None = None

    # ── as the feed's sink ────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """The peer has not taken enough yet."""
        return self.tap.full

    @property
    def taker(self) -> Taker | None:
        """The socket, while nothing is in the way of writing to it."""
        return self.tap.clear

    def owe(self, entries: Sequence[Entry], data: bytes, sent: int) -> None:
        """A fan-out wrote to the socket, which took a part."""
        self.tap.put_rest(data, sent)
        self._unflushed(entries)

    def count(self, written: int) -> None:
        """A fan-out wrote so much to wires like this one."""
        self.tap.wrote.bytes_out += written

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Hand entries to the tap; the ledger hears of them when they are flushed."""
        self.tap.put(self.framing.encode(entries))
        self._unflushed(entries)

    def deliver_last(self, entries: Sequence[Entry]) -> bool:
        """Write one entry at once. This is the path of a fan-out."""
        tap = self.tap
        if tap.clear is None and tap.full:
            return False
        if tap.put_last(self.framing.encode(entries)):
            entry = entries[0]
            self._ledger.sent(self.who, entry.stream, entry.id, entry.id)
        else:
            self._unflushed(entries)
        return True

    def _unflushed(self, entries: Sequence[Entry]) -> None:
        if len(entries) == 1 and not self._last:
            entry = entries[0]
            self._stream = entry.stream
            self._first = self._last = entry.id
        elif self._ledger.enabled:
            for stream, first, last in self._ledger.intervals(entries):
                self._note(stream, first, last)

    def _note(self, stream: str, first: int, last: int) -> None:
        """Stretch the interval of a stream; there may be several streams in one flush."""
        if stream == self._stream and self._last:
            self._last = last
            return
        if self._last:
            self._others = self._others or {}
            self._others[self._stream] = (self._first, self._last)
        known = self._others.pop(stream, None) if self._others else None
        self._stream, self._first, self._last = stream, known[0] if known else first, last

    def gap(self, after: int, upto: int) -> None:
        """Say that entries are missing."""

    def failed(self, error: Exception) -> None:
        """The log cannot be read: the peer comes back with its position."""
        self.tap.abort()

    # ── as the tap's owner ─────────────────────────────────────────────────────────────────

    def flushed(self) -> None:
        """The kernel has taken everything."""
        if self._last:
            self._ledger.sent(self.who, self._stream, self._first, self._last)
            self._last = 0
        if self._others:
            for stream, (first, last) in self._others.items():
                self._ledger.sent(self.who, stream, first, last)
            self._others = None

    def drained(self) -> None:
        """The peer takes bytes again."""
        self.feed.resume()

    def lost(self, code: int = 0) -> None:
        """The peer is gone."""
        self.feed.stop()

    def end(self) -> None:
        """End the answer properly: the peer may come back with its position."""
        self.feed.stop()
        self.tap.expire()

    token_ended = end
