"""Which streams a follower of the log wants, for an engine that sends each node only what it asked for.

Most engines send every entry to each node, and ignore this. A worker (`engines/local`) is sent only what its followers
asked for, and the log process learns of a new pattern a moment later. So a follower calls `since(patterns)`: every
matching entry after that id is sent to this node. Entries up to that id have to be read from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

UNKNOWN: Final = 2**63 - 1
"""What `since` says until the log has answered: no position is above it."""


class WantedStreamsListener(Protocol):
    """What hears of the wanted streams: the engine's side."""

    def want(self, pattern: str) -> None:
        """One more follower wants entries that match *pattern*. Several calls for one pattern are counted."""
        ...

    def unwant(self, pattern: str) -> None:
        """Take back one `want` of *pattern*."""
        ...

    def since(self, pattern: str) -> int:
        """The id after which everything has come that *pattern* covers; `UNKNOWN` while the answer is on its way."""
        ...


class WantedStreams:
    """The patterns that one follower wants. Each `add` is taken back by one `remove`."""

    def __init__(self, *patterns: str, types: Iterable[str] = (), moved: Callable[[int], None] | None = None) -> None:
        """*patterns* are wanted for good.

        *types*: meta entries of these types are wanted from every stream, and then all later entries of that stream.
        *moved* is called with the log's newest id when it may have moved on without an entry for this follower.
        """
        self.patterns, self.types, self.moved = patterns, tuple(types), moved
        self._desk: WantedStreamsListener | None = None

    def attach(self, desk: WantedStreamsListener) -> None:
        """Tell *desk* these patterns, and each later change: from now on this node is sent only what it asked for."""
        self._desk = desk
        for pattern in self.patterns:
            desk.want(pattern)

    def add(self, *patterns: str) -> None:
        """Want what these cover, too."""
        if self._desk is not None:
            for pattern in patterns:
                self._desk.want(pattern)

    def remove(self, *patterns: str) -> None:
        """Undo one `add` of each of these patterns."""
        if self._desk is not None:
            for pattern in patterns:
                self._desk.unwant(pattern)

    def since(self, patterns: Iterable[str]) -> int:
        """The id after which everything has come that these patterns cover: 0 where everything comes anyway."""
        return 0 if self._desk is None else max(map(self._desk.since, patterns), default=0)
