"""A live answer: who sends it, and what the sender hears of its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.http.output import Pipe, Tap
from penstock.wire.http_chunks import LAST_CHUNK


class Owner(Protocol):
    """The object that writes to an outlet. Its methods are called when the state of the outlet changes.

    Three more methods are called when they exist: `draining()`, when the server is about to stop (without it
    the outlet is closed), `token_ended()`, when the token that opened it has expired (without it the outlet is
    aborted), and `flushed()`, after the kernel took all that was queued, if the outlet was opened with
    `watch=True`.
    """

    def drained(self) -> None:
        """The outlet was full and takes bytes again."""
        ...

    def lost(self) -> None:
        """The peer is gone or the outlet was aborted. Called exactly once, never after `Outlet.close`."""
        ...


class Outlet(Tap):
    """A live answer: bytes go out, framed by the caller, until one side ends it."""

    __slots__ = ("chunked", "owner")

    owner: Owner

    def __init__(self, pipe: Pipe | None, owner: Owner, *, chunked: bool, watch: bool = False) -> None:
        super().__init__(pipe, watch)
        self.owner = owner
        self.chunked = chunked  # False for HTTP/1.0: the end of the connection ends the answer

    send = Tap.put
    """Queue bytes that are framed already (`wire.http_chunks.chunk` if `chunked`), shared with other outlets."""

    def abort(self) -> None:
        """Cut the connection at once, so that it does not look like the end of the answer."""
        if self._pipe is not None and not self.chunked:
            self._pipe.reset_at_close()
        super().abort()

    def close(self, *, hang_up: bool = False) -> None:
        """End the answer properly; the connection goes on with its next request, or ends (*hang_up*)."""
        pipe = self._pipe
        if pipe is not None:
            if self.chunked:
                self.put(LAST_CHUNK)
            self._shut()
            if hang_up:
                pipe.no_more_requests()
            pipe.tap_closed()

    def broken(self) -> None:
        if self._pipe is not None:
            self._shut()
            self.owner.lost()

    def draining(self) -> None:
        tell: Callable[[], None] = getattr(self.owner, "draining", self.close)
        tell()

    def token_ended(self) -> None:
        # Cut, unless the owner knows better: the owner hears of it, and half of an answer does not look whole.
        tell: Callable[[], None] = getattr(self.owner, "token_ended", self.abort)
        tell()

    def expire(self) -> None:
        self.close()
