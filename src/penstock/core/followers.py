"""Gives new entries to all followers of a log. A follower that raises does not disturb the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.core.metering import Sample
from penstock.values import Entry

log = logging.getLogger("penstock.followers")

Follower = Callable[[Sequence[Entry]], None]


def followers_failed(followers: Followers) -> Sample:
    """What `/metrics` shows of them."""
    return "counter", "followers_failed", "Times that a part of the server failed at new entries.", followers.failed, {}


class Followers:
    """The followers of one log, in the order in which they came."""

    def __init__(self) -> None:
        self._all: list[Follower] = []
        self.failed = 0  # calls that raised

    def add(self, follower: Follower) -> None:
        """Tell this one as well from now on."""
        self._all.append(follower)

    def tell(self, entries: Sequence[Entry]) -> None:
        """Give *entries* to all followers. Never raises: the append succeeded, and its caller must be told so."""
        for follower in self._all:
            try:
                follower(entries)
            except Exception:
                self.failed += 1
                log.exception("follower.failed", extra={"first": entries[0].id, "last": entries[-1].id})
