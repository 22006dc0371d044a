"""What a follower wants to be given of the log, for engines that do not give everything to every node.

Most engines give each node every entry, and take no notice of wishes. The workers of one machine (`engines/local`) are
given only what somebody there wants. It takes a moment until a new wish is known to the log. So a follower asks
`since`: after that id everything that the wish covers has come, or will. What lies before it is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

UNKNOWN: Final = 2**63 - 1
"""What `since` says until the log has answered: no position is above it."""


class WishDesk(Protocol):
    """Where wishes go: the engine's side."""

    def wish(self, pattern: str) -> None:
        """Somebody wants what *pattern* covers, perhaps not for the first time."""
        ...

    def unwish(self, pattern: str) -> None:
        """One of those who want it wants it no more."""
        ...

    def since(self, pattern: str) -> int:
        """The id after which everything has come that *pattern* covers; `UNKNOWN` while the answer is on its way."""
        ...


class Wishes:
    """The wishes of one follower. Each `add` is taken back by one `remove`."""

    def __init__(self, *patterns: str, types: Iterable[str] = (), moved: Callable[[int], None] | None = None) -> None:
        """*patterns* are wanted for good.

        *types* are meta entries that are wanted in whatever stream they come, and what comes after them there.
        *moved* is called with the log's newest id when it may have moved on without an entry for this follower.
        """
        self.patterns, self.types, self.moved = patterns, tuple(types), moved
        self._desk: WishDesk | None = None

    def bring_to(self, desk: WishDesk) -> None:
        """From now on *desk* is told: entries come by choice."""
        self._desk = desk
        for pattern in self.patterns:
            desk.wish(pattern)

    def add(self, *patterns: str) -> None:
        """Want what these cover, too."""
        if self._desk is not None:
            for pattern in patterns:
                self._desk.wish(pattern)

    def remove(self, *patterns: str) -> None:
        """Take back as many wishes."""
        if self._desk is not None:
            for pattern in patterns:
                self._desk.unwish(pattern)

    def since(self, patterns: Iterable[str]) -> int:
        """The id after which everything has come that these patterns cover: 0 where everything comes anyway."""
        return 0 if self._desk is None else max(map(self._desk.since, patterns), default=0)
