"""How many bytes of request bodies all connections of a listener hold together. Pure counting."""

from __future__ import annotations

from penstock.errors import Busy
from penstock.limits import BODIES_SHARE


class BodyBudget:
    """`server.bodies_bytes`, shared among the addresses that send.

    A body of known length is booked whole before it is read, so that whoever has begun can finish: nobody waits for
    bytes that another holds. One in chunks is booked as it grows. Who has nothing booked may always book one body, as
    far as the whole allows; and a body of any size may come while nobody else's is here.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._share = limit, limit // BODIES_SHARE
        self._by_address: dict[str, int] = {}
        self.held = 0

    def book(self, address: str, size: int, before: int = 0) -> None:
        """Count *size* more bytes of a body under an address, of which it has booked some *before*.

        Raises `Busy` where that is too much, and counts nothing. Nobody, as a proxy is, has no share of his own.
        """
        own = self._by_address.get(address, 0)
        full = self.held > before and self.held + size > self._limit
        if full or (address and own > before and own + size > self._share):
            raise Busy("server.bodies_bytes", self._limit)
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

    def __init__(self, budget: BodyBudget, address: str) -> None:
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
