"""Ends a live answer when the token that opened it expires, and counts the live answers of each subject.

Every live answer with a `Request.caller` has a lease. The lease is a timer of the wheel: at the token's expiry
the answer is ended, so that nobody reads on with an expired token.
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
