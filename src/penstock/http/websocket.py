"""A connection that has become a WebSocket.

Frames are read by websockets' `ServerProtocol`. It weighs some 4 KB, and between two messages it knows
nothing that a fresh one would not know; so an idle WebSocket has none. The one that the listener keeps is
lent to whoever receives bytes, and stays with a connection only while a frame or a message is incomplete,
or the closing handshake is under way. Outgoing frames are encoded once for all receivers (`wire/websocket_frames.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from penstock.http.output import EXPIRED, Pipe, Tap
from penstock.limits import FRAGMENTS
from penstock.wire.websocket_frames import PING_FRAME

log = logging.getLogger("penstock.http")
_quiet = logging.getLogger("penstock.http.frames")
_quiet.setLevel(logging.WARNING)  # the parser would say "connection closed" at INFO for each of them

CLOSE_SECONDS: Final = 5.0
"""How long a peer may take to answer a close frame."""


class WebSocketOwner(Protocol):
    """The object that uses a WebSocket. Its methods are called for messages, and when the WebSocket's state changes.

    Two more methods are called when they exist: `draining()`, when the server is about to stop (without it: close
    with 1001), and `token_ended()`, when the token that opened it has expired (without it: close with 1008).
    """

    def received(self, message: str | bytes) -> None:
        """A whole message: text as str, binary as bytes."""
        ...

    def drained(self) -> None:
        """The WebSocket was full and takes bytes again."""
        ...

    def lost(self, code: int) -> None:
        """It is over; *code* is the close code, 1006 if there was none. Called exactly once."""
        ...

    def ponged(self) -> None:
        """The peer answered a ping."""
        ...


class FrameReaders:
    """Lends out frame parsers that are between two messages."""

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._spare: ServerProtocol | None = None

    def take(self) -> ServerProtocol:
        """A parser at the beginning of a frame, for the caller alone."""
        spare, self._spare = self._spare, None
        return spare or ServerProtocol(state=State.OPEN, max_size=self._message_bytes, logger=_quiet)

    def give_back(self, reader: ServerProtocol) -> None:
        """Take back a parser that stands at the beginning of a frame again."""
        self._spare = reader


class WebSocket(Tap):
    """An open WebSocket. Bytes to a peer that is gone are dropped without a word: `lost` says it."""

    __slots__ = ("_code", "_deaf", "_line", "_parts", "_reader", "_readers", "_text", "_unread", "owner")

    owner: WebSocketOwner

    def __init__(self, pipe: Pipe, owner: WebSocketOwner, readers: FrameReaders, *, watch: bool = False) -> None:
        super().__init__(pipe, watch)
        self.owner = owner
        self._line: Pipe | None = pipe  # until it is lost; `_pipe` only until it closes: nothing follows a close frame
        self._readers = readers
        self._reader: ServerProtocol | None = None
        self._unread = 0  # bytes given to the reader that are not accounted for by whole frames
        self._parts: list[bytes] | None = None  # of a message in fragments
        self._text = False
        self._deaf = False  # closed from here: nobody waits for messages any more
        self._code = int(CloseCode.ABNORMAL_CLOSURE)

    send_frame = Tap.put
    """Queue a frame that is encoded already (`wire.websocket_frames.text_frame`), shared with other receivers."""

    def ping(self) -> None:
        """Ask for a sign of life; the owner hears `ponged`."""
        self.put(PING_FRAME)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Begin the closing handshake. The owner hears `lost` at its end, or when the peer lets it time out."""
        if self._pipe is None or self._line is None:
            return
        reader = self._borrow()
        if reader.state is not State.OPEN:  # the peer's close frame came in the same breath, and is being answered
            self._deaf = True
            return
        try:
            reader.send_close(code, _short(reason))
        except ProtocolError as error:
            raise ValueError(f"{code} is no close code: {error}") from None
        self._code, self._deaf = code, True
        self._send_waiting(reader)
        self._shut()
        self._line.closing()

    # ── for the connection ────────────────────────────────────────────────────────────────────

    @property
    def through(self) -> bool:
        return self._line is None  # after a close frame the peer's is still to come

    @property
    def halfway(self) -> bool:
        """A frame, or a message in fragments, has begun and is not complete: this waits for the peer."""
        return self._reader is not None and self._reader.state is State.OPEN

    @property
    def held(self) -> int:
        """Bytes of a message that is not complete."""
        return 0 if self._reader is None else self._unread + (self._reader.current_size or 0)

    def receive(self, data: bytes) -> int:
        """Take bytes from the peer; return how many frames they made. Whatever they are, they never raise."""
        reader = self._borrow()
        self._unread += len(data)
        reader.receive_data(data)
        events = reader.events_received()
        for event in events:
            if isinstance(event, Frame):
                self._unread -= _wire_size(event)
                self._take(event, reader)
        self._send_waiting(reader)
        if self._unread == 0 and reader.state is State.OPEN and reader.current_size is None:
            self._readers.give_back(reader)
            self._reader = None
        return len(events)

    def broken(self) -> None:
        if self._line is not None:
            self._shut()
            self._line = None
            received = self._reader.close_rcvd if self._reader else None
            self.owner.lost(received.code if received else self._code)

    def draining(self) -> None:
        tell = getattr(self.owner, "draining", None)
        if tell is None:
            self.close(CloseCode.GOING_AWAY)
        else:
            tell()

    def token_ended(self) -> None:
        tell: Callable[[], None] = getattr(self.owner, "token_ended", self.expire)
        tell()

    def expire(self) -> None:
        self.close(CloseCode.POLICY_VIOLATION, EXPIRED)

    def _borrow(self) -> ServerProtocol:
        if self._reader is None:
            self._reader = self._readers.take()
        return self._reader

    def _send_waiting(self, reader: ServerProtocol) -> None:
        """Queue what the reader wants sent: pongs, and at the end a close frame and the end of the stream."""
        for data in reader.data_to_send():
            if data:
                self.put(data)
            elif self._line is not None:
                self._note_failure(reader)
                self._shut()
                self._line.hang_up()

    def _note_failure(self, reader: ServerProtocol) -> None:
        if reader.parser_exc is not None and reader.close_sent is not None:
            self._code = reader.close_sent.code

    def _take(self, frame: Frame, reader: ServerProtocol) -> None:
        if frame.opcode is Opcode.PONG:
            self._tell(reader, self.owner.ponged)
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._take_data(frame, reader)

    def _take_data(self, frame: Frame, reader: ServerProtocol) -> None:
        if frame.opcode is not Opcode.CONT:
            self._parts, self._text = [], frame.opcode is Opcode.TEXT
        parts = self._parts
        if parts is None:
            return
        parts.append(bytes(frame.data))
        if len(parts) > FRAGMENTS:
            self._parts = None
            self._fail(reader, CloseCode.POLICY_VIOLATION, f"a message in more than {FRAGMENTS} frames")
        elif frame.fin:
            self._parts = None
            self._deliver(b"".join(parts), reader)

    def _deliver(self, payload: bytes, reader: ServerProtocol) -> None:
        try:
            message: str | bytes = payload.decode() if self._text else payload
        except UnicodeDecodeError:
            self._fail(reader, CloseCode.INVALID_DATA, "not UTF-8")
            return
        self._tell(reader, self.owner.received, message)

    def _tell(self, reader: ServerProtocol, hear: Callable[..., None], *message: str | bytes) -> None:
        """Let the owner hear something; its failure ends this WebSocket and nothing else."""
        if self._deaf or self._line is None:
            return
        try:
            hear(*message)
        except Exception:
            log.exception("websocket.owner_failed")
            self._fail(reader, CloseCode.INTERNAL_ERROR, "")

    def _fail(self, reader: ServerProtocol, code: CloseCode, reason: str) -> None:
        self._deaf = True
        if reader.state is State.OPEN:
            self._code = int(code)
            reader.fail(code, reason)


def _wire_size(frame: Frame) -> int:
    """Bytes of a client's frame, if its length was written in the shortest way.

    One that was not, against RFC 6455, makes the count come out too high: from then on the connection counts as in the
    middle of a message, which costs it its reader's weight and a deadline.
    """
    size = len(frame.data)
    return size + (6 if size < 126 else 8 if size < 65536 else 14)


def _short(reason: str) -> str:
    """A close frame has room for 123 bytes of reason."""
    return reason.encode()[:123].decode(errors="ignore")
