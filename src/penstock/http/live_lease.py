"""Ends a live answer with the token of its holder, and counts it among those of the same subject.

A live answer that was opened for somebody (`Request.caller`) has one. Its end stands in the one
wheel; when it comes the answer is ended, so that nobody goes on reading with a token that is over.
"""

from __future__ import annotations

from penstock.errors import Unauthenticated
from penstock.http.output import EXPIRED, Tap
from penstock.http.requests import TokenHolder
from penstock.http.shared import Shared
from penstock.http.timers import Timed


class LiveLease(Timed):
    """Taken before a live answer begins, given back when it has ended, in whatever way."""

    __slots__ = ("_counted", "_expires", "_shared", "_tap")

    def __init__(self, shared: Shared, holder: TokenHolder) -> None:
        """Raises `TooManyOpen`, or `Unauthenticated` if the token has ended while its request was waiting."""
        super().__init__()
        self._shared, self._expires = shared, holder.expires
        self._tap: Tap | None = None
        if holder.expires <= shared.clock.now_ms() / 1000:
            raise Unauthenticated(EXPIRED)
        self._counted = holder.subject  # empty once it is not counted any more
        if holder.subject:
            shared.caps.open_live(holder.subject)

    def begin(self, tap: Tap) -> None:
        """The answer is open: *tap* hears when its token ends."""
        if self._expires < float("inf"):
            self._tap = tap
            self._shared.wheel.arm(self, self._expires - self._shared.clock.now_ms() / 1000)

    def expired(self) -> None:
        if self._tap is not None:
            self._tap.token_ended()

    def step_aside(self) -> None:
        """Count no longer: another is about to take this one's place."""
        if self._counted:
            self._shared.caps.close_live(self._counted)
            self._counted = ""

    def end(self) -> None:
        """The answer has ended."""
        self.step_aside()
        self._tap = None
        self._shared.wheel.forget(self)
