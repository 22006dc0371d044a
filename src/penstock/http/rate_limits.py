"""How much one address or token may ask. Pure: the time comes in as an argument."""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import Final

from penstock.errors import Busy

RATE_BUCKETS: Final = 100_000
"""Addresses and tokens whose rates are remembered. Over it: those quiet for longest are forgotten, which can
only allow them a little more."""


class RateExceeded(Busy):
    """An address or a token asks faster than it may. Nothing happened; it may ask again a little later."""

    code = "rate_exceeded"
    status = 429

    def __init__(self, limit: str, value: float, wait_seconds: float) -> None:
        self.retry_after = max(1, ceil(wait_seconds))
        super().__init__(limit, ceil(value))


class TooManyOpen(Busy):
    """A token has as many live answers open as it may. Nothing was opened; it may ask again when one has ended."""

    code = "too_many_open"
    status = 429
    retry_after = 5

    def __init__(self, limit: str, value: int) -> None:
        super().__init__(limit, value)
        self.remedy = f"End another live answer of this subject first, or raise {limit}."


class TokenBuckets:
    """One bucket per key: filled at *rate* per second, holding at most *burst*."""

    def __init__(self, name: str, rate: float, burst: float, keys: int = RATE_BUCKETS) -> None:
        self._name, self._rate, self._burst, self._keys = name, rate, burst, keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → (filled, when)

    def take(self, key: str, now: float) -> None:
        """Take one from the bucket of *key*; raises `RateExceeded` when it is empty."""
        filled, when = self._buckets.get(key, (self._burst, now))
        filled = min(self._burst, filled + max(0.0, now - when) * self._rate)
        if filled < 1:
            raise RateExceeded(self._name, self._rate, (1 - filled) / self._rate)
        self._buckets[key] = (filled - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)


class Caps:
    """Caps on connections and requests. 0 is no cap, but for *connections*, which must be given: 0 admits none.

    A token is known by its subject; its connections are those with an open live answer, since any other may carry
    requests of many tokens.
    """

    def __init__(
        self,
        connections: int,
        per_address: int = 0,
        requests_per_address: float = 0.0,
        requests_per_token: float = 0.0,
        per_token: int = 0,
    ) -> None:
        self._connections, self._per_address, self._per_token = connections, per_address, per_token
        self._open = 0
        self._by_address: dict[str, int] = {}
        self._by_subject: dict[str, int] = {}
        self._addresses = _buckets("server.requests_per_address", requests_per_address)
        self._tokens = _buckets("server.requests_per_token", requests_per_token)
        self.counts_tokens = self._tokens is not None  # whether `request_of_token` is to be called at all
        self.counts_live = per_token > 0  # whether `open_live` is

    @property
    def open(self) -> int:
        """Connections that are open."""
        return self._open

    def admit(self, address: str) -> str:
        """Count a new connection; returns the limit that it would break instead, or nothing.

        A proxy stands for many: its *address* is empty, and the connection counts towards the sum alone.
        """
        if self._open >= self._connections:
            return "server.connections"
        if address:
            count = self._by_address.get(address, 0)
            if self._per_address and count >= self._per_address:
                return "server.connections_per_address"
            self._by_address[address] = count + 1
        self._open += 1
        return ""

    def release(self, address: str) -> None:
        """A connection that was admitted is gone."""
        self._open -= 1
        if address:
            _count_down(self._by_address, address)

    def open_live(self, subject: str) -> None:
        """Count a live answer under a token's subject; raises `TooManyOpen` for one over the cap."""
        if self._per_token:
            count = self._by_subject.get(subject, 0)
            if count >= self._per_token:
                raise TooManyOpen("server.connections_per_token", self._per_token)
            self._by_subject[subject] = count + 1

    def close_live(self, subject: str) -> None:
        """A live answer that was counted has ended."""
        if self._per_token:
            _count_down(self._by_subject, subject)

    def request_of_address(self, address: str, now: float) -> None:
        """Count a request; raises `RateExceeded`."""
        if self._addresses is not None:
            self._addresses.take(address, now)

    def request_of_token(self, token_id: str, now: float) -> None:
        """Count a request made with a token (its subject, not its text); raises `RateExceeded`."""
        if self._tokens is not None:
            self._tokens.take(token_id, now)


def _count_down(counts: dict[str, int], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _buckets(name: str, rate: float) -> TokenBuckets | None:
    # Two seconds' worth may come at once: clients start in bursts.
    return TokenBuckets(name, rate, max(1.0, 2 * rate)) if rate else None
