"""What a token gives a live answer: a place among those of its subject, and time until the token ends.

Every live answer that was opened for somebody whom `Context.caller` named has one. Its end stands in the one
wheel; when it comes the answer is ended, so that nobody goes on reading with a token that is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import Unauthenticated
from penstock.server.wheel import Timed

if TYPE_CHECKING:
    from penstock.server.auth import Caller
    from penstock.server.flush import Tap
    from penstock.server.service import Service

EXPIRED: Final = "the token has expired"


class Lease(Timed):
    """Taken before a live answer begins, given back when it has ended, in whatever way."""

    __slots__ = ("_counted", "_expires", "_service", "_tap")

    def __init__(self, service: Service, caller: Caller) -> None:
        """Raises `TooManyOpen`, or `Unauthenticated` if the token has ended while its request was waiting."""
        super().__init__()
        self._service, self._expires = service, caller.expires
        self._tap: Tap | None = None
        if caller.expires <= service.clock.now_ms() / 1000:
            raise Unauthenticated(EXPIRED)
        self._counted = caller.subject  # empty once it is not counted any more
        if caller.subject:
            service.caps.open_live(caller.subject)

    def begin(self, tap: Tap) -> None:
        """The answer is open: *tap* hears when its token ends."""
        if self._expires < float("inf"):
            self._tap = tap
            self._service.wheel.arm(self, self._expires - self._service.clock.now_ms() / 1000)

    def expired(self) -> None:
        if self._tap is not None:
            self._tap.token_ended()

    def step_aside(self) -> None:
        """Count no longer: another is about to take this one's place."""
        if self._counted:
            self._service.caps.close_live(self._counted)
            self._counted = ""

    def end(self) -> None:
        """The answer has ended."""
        self.step_aside()
        self._tap = None
        self._service.wheel.forget(self)
