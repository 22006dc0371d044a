"""Tells all who follow a log what was appended; what one of them does wrong is no other's business."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.values import Entry

log = logging.getLogger("penstock.followers")

Follower = Callable[[Sequence[Entry]], None]


class Followers:
    """The followers of one log, in the order in which they came."""

    def __init__(self) -> None:
        self._all: list[Follower] = []
        self.failed = 0  # calls that raised

    def add(self, follower: Follower) -> None:
        """Tell this one as well from now on."""
        self._all.append(follower)

    def tell(self, entries: Sequence[Entry]) -> None:
        """Give *entries* to everybody. Never raises: who waits for the append must hear of it in any case."""
        for follower in self._all:
            try:
                follower(entries)
            except Exception:
                self.failed += 1
                log.exception("follower.failed", extra={"first": entries[0].id, "last": entries[-1].id})
