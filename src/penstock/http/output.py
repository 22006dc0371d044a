"""The output of a connection: collected, written once per loop turn; and the tap that handlers write into.

An event that goes to 5,000 connections is framed once; each connection then costs one note that it has
output and one system call. On plain TCP that call is made here, straight on the socket, as long as the
transport holds nothing back: it saves uvloop's bookkeeping for each write (docs/connections.md has the
figures). What the kernel does not take at once goes to the transport, and so does everything after it until
that is gone, so bytes never overtake each other. A peer who takes nothing is cut by `deadlines.py`.

    Outlet.send ─▶ Pipe.out ─▶ Flusher, once per turn ─▶ send(2) ──short write──▶ transport
                                                            │                          │ resume_writing
                                                            └──────── emptied ◀────────┘
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, Protocol, cast

from penstock.http.flushing import Flusher
from penstock.http.timers import Timed

EXPIRED: Final = "the token has expired"
"""What a peer is told when the token that opened its live answer has ended."""


class Listening(Protocol):
    """What every owner of a tap can hear. Those who ask to watch hear `flushed`, too."""

    def drained(self) -> None: ...


class Writable(Protocol):
    """Told when bytes can be written straight to a tap's socket (`Tap.clear`), and when not. A `core.feed.Feed`."""

    def take_seat(self) -> None:
        """Bytes can be written to the socket at once from now on."""
        ...

    def leave_seat(self) -> None:
        """Something is in the way."""
        ...


class Tap:
    """Base of `Outlet` and `WebSocket`: the object through which a handler writes a live answer."""

    __slots__ = ("_awaited", "_pipe", "_watch", "clear", "notify", "plain", "reader", "wrote")

    owner: Listening

    def __init__(self, pipe: Pipe | None, watch: bool) -> None:
        # The socket, while nothing is in the way of writing to it at once. A fan-out looks at no more than this: what
        # else it would have to ask the pipe is somewhere else in memory, and has to be fetched for each connection.
        self.clear: socket.SocketType | None = None
        self.reader: Writable | None = None
        self.wrote = cast("Flusher", pipe and pipe.flusher)  # where such a write is counted
        self._pipe = pipe  # None once it is closed or lost
        self._watch = watch
        self._awaited = False  # somebody saw it full
        self.notify = watch  # `emptied` is to be called when all is written
        self.plain = watch  # … and that is no more than telling the owner

    @property
    def pending(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._pipe.pending if self._pipe is not None else 0

    @property
    def full(self) -> bool:
        """Above the high-water mark: stop sending, the owner hears `drained` when there is room."""
        pipe = self._pipe
        if pipe is None or (not pipe.stuck and pipe.queued <= pipe.high_water):
            return False
        if pipe.pending <= pipe.high_water:
            return False
        self._awaited = self.notify = True
        self.plain = False
        return True

    @property
    def open(self) -> bool:
        """Bytes still go somewhere."""
        return self._pipe is not None

    @property
    def through(self) -> bool:
        """It is closed, and nothing more has to come from the peer (for a WebSocket: its close frame has come)."""
        return self._pipe is None

    def abort(self) -> None:
        """Cut the connection at once; what is pending is dropped."""
        if self._pipe is not None:
            self._pipe.cut()

    def put(self, data: bytes) -> None:
        """Queue bytes as they are. They are dropped when nobody is there any more."""
        pipe = self._pipe
        if pipe is None:
            return
        out = pipe.out
        if out is None:
            pipe.out = data
            if self.clear is not None:
                self.block()
            flusher = pipe.flusher
            if not flusher.ready:
                flusher.book()
            flusher.ready.append(pipe)
        elif isinstance(out, bytes):
            pipe.out = [out, data]
        else:
            out.append(data)
        pipe.queued += len(data)

    def put_last(self, data: bytes) -> bool:
        """As `put`, when nothing more comes for now: write it at once unless something is in the way.

        True means that the kernel has taken it, all else is written, and the owner is not told: it knows.
        """
        sock = self.clear
        if sock is None:
            self.put(data)
            return False
        try:
            sent = sock.send(data)
        except OSError:
            sent = 0  # there is no room, or no peer: a flush will see
        if sent < len(data):
            self.put_rest(data, sent)
            return False
        self.wrote.bytes_out += sent
        return True

    def put_rest(self, data: bytes, sent: int) -> None:
        """The socket took so many of these bytes: queue the others."""
        self.wrote.bytes_out += sent
        self.put(data[sent:])

    def unblock(self, sock: socket.SocketType) -> None:
        """Nothing is in the way of writing to the socket at once."""
        self.clear = sock
        if self.reader is not None:
            self.reader.take_seat()

    def block(self) -> None:
        """Bytes that come have to wait for others, or nobody takes them any more."""
        if self.clear is not None:
            self.clear = None
            if self.reader is not None:
                self.reader.leave_seat()

    def hold_back(self) -> bool:
        """Have nothing written, not even the head, until `let_through`.

        False if the peer has not taken former answers yet: then those decide when this one goes out.
        """
        pipe = self._pipe
        if pipe is None or pipe.stuck:
            return False
        pipe.stuck = True
        return True

    def let_through(self) -> None:
        """Have written what was held back."""
        if self._pipe is not None:
            self._pipe.resume_writing()

    def _shut(self) -> None:
        """Nothing goes out any more."""
        self.block()
        self._pipe = None
        self.plain = False

    def emptied(self) -> None:
        """All that was queued is written: tell those who wanted to know."""
        owner = self.owner
        self.notify = self._watch
        if self._watch:
            owner.flushed()  # type: ignore[attr-defined]  # who asks to watch has it
        if self._awaited:
            self._awaited = False
            self.plain = self._watch and self._pipe is not None
            if self._pipe is not None:
                owner.drained()

    def broken(self) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def draining(self) -> None:
        """The server is about to stop."""
        raise NotImplementedError

    def token_ended(self) -> None:
        """The token that opened it has expired."""
        raise NotImplementedError

    def expire(self) -> None:
        """End it properly because of that, and say so where the protocol has a place for it."""
        raise NotImplementedError

    def step_aside(self) -> None:
        """Count no longer as one of its token: the one that takes its place is about to be opened."""
        if self._pipe is not None:
            self._pipe.step_aside()


class Pipe(Timed):
    """The outgoing half of a connection."""

    __slots__ = ("ending", "flusher", "high_water", "out", "queued", "sock", "stuck", "tap", "transport")

    def __init__(self, flusher: Flusher, high_water: int) -> None:
        super().__init__()
        self.flusher, self.high_water = flusher, high_water
        # What the next flush writes. One piece is by far the usual case, and a list for each of 5,000
        # connections would be 5,000 allocations per event.
        self.out: bytes | list[bytes] | None = None
        self.queued = 0  # bytes in `out`
        self.stuck = False  # the transport holds bytes back, or the tap does
        self.ending = False  # close when everything is written
        # The plain socket, borrowed from the transport; None is "use the transport" (TLS, or closed).
        self.sock: socket.SocketType | None = None
        self.tap: Tap | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    @property
    def pending(self) -> int:
        """Bytes collected here or held back by the transport."""
        return self.queued + self.transport.get_write_buffer_size() if self.stuck else self.queued

    def write(self, data: bytes) -> None:
        """Queue bytes for the next flush."""
        out = self.out
        if out is None:
            self.out = data
            self.flusher.add(self)
            if self.tap is not None:
                self.tap.block()
        elif isinstance(out, bytes):
            self.out = [out, data]
        else:
            out.append(data)
        self.queued += len(data)

    def write_last(self, data: bytes) -> None:
        """Write bytes at once: nothing more comes in this turn of the loop.

        Through the transport, which keeps the interpreter lock meanwhile. A direct `send` gives it away, and with a
        busy writer thread takes it back only after a switch: that costs more than it saves.
        """
        if self.out is not None or self.stuck or self.transport.is_closing():
            self.write(data)
        else:
            self.flusher.bytes_out += len(data)
            self.transport.write(data)

    def flush(self) -> None:
        """Write what was collected, unless the transport is still busy with older bytes."""
        out = self.out
        if out is None or self.stuck:
            return
        data = out if isinstance(out, bytes) else b"".join(out)
        self.out = None
        self.queued = 0
        if self.sock is not None:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.cut()
                return
            self.flusher.bytes_out += sent
            if sent == len(data):
                tap = self.tap
                if tap is not None:
                    if tap.plain:
                        tap.owner.flushed()  # type: ignore[attr-defined]  # the path of a fan-out
                    elif tap.notify:
                        self._emptied(tap)
                    if self.out is None and self.flusher.prompt and tap.open:
                        tap.unblock(self.sock)
                if self.ending and self.out is None:
                    self.ended()
                return
            data = data[sent:]
        self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        """Let the transport write *data*: it may have to wait for the peer (`pause_writing`)."""
        if self.transport.is_closing():
            return
        self.flusher.bytes_out += len(data)
        self.transport.write(data)
        if self.ending:
            self.ended()
        elif not self.stuck and self.tap is not None and self.tap.notify:
            self._emptied(self.tap)

    def _emptied(self, tap: Tap) -> None:
        tap.emptied()
        if tap.through:  # it was closed with bytes on the way, and stayed for this
            self.tap = None

    def unstick(self) -> None:
        """The transport has written everything."""
        self.stuck = False
        if self.out is not None:
            self.flush()
        elif self.tap is not None and self.tap.notify:
            self._emptied(self.tap)

    def end(self) -> None:
        """Close the connection once everything is written."""
        self.ending = True
        if self.out is None and not self.stuck:
            self.ended()

    def ended(self) -> None:
        """Everything is with the transport: close it."""
        self.let_go()
        self.transport.close()

    def cut(self) -> None:
        """Close the connection now."""
        self.let_go()
        self.transport.abort()

    def reset_at_close(self) -> None:
        """Let the peer see an error instead of an end: there the end of the connection is that of the answer."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def borrow(self) -> None:
        """Write straight to the transport's socket from now on."""
        shared = self.transport.get_extra_info("socket")
        self.sock = socket.SocketType(shared.family, shared.type, shared.proto, shared.fileno())

    def let_go(self) -> None:
        """Give the socket back before the transport closes it: its number may soon be another connection's."""
        if self.sock is not None:
            if self.tap is not None:
                self.tap.block()
            self.sock.detach()
            self.sock = None

    def resume_writing(self) -> None:
        """What was in the way of writing is gone."""
        raise NotImplementedError

    def tap_closed(self) -> None:
        """The live answer was ended properly by its owner."""
        raise NotImplementedError

    def no_more_requests(self) -> None:
        """Close the connection when the answer is out, whatever its head said."""
        raise NotImplementedError

    def step_aside(self) -> None:
        """The live answer counts no longer as one of its token."""
        raise NotImplementedError

    def closing(self) -> None:
        """A WebSocket waits for its peer to answer the close frame: not for ever."""
        raise NotImplementedError

    def hang_up(self) -> None:
        """Write what is left, say that no more comes, and read on for a moment before closing.

        A socket that is closed with unread bytes resets the connection, and the peer may lose the answer.
        """
        raise NotImplementedError
