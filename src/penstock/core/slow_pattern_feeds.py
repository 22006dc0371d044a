"""Feeds whose patterns take long to look up. They are offered nothing: the hub looks through new entries for each.

All other feeds are found by the streams of new entries, for all of them at once, while everybody waits. With patterns
that are not quick (`matching.is_quick`) a few readers could make each such look-up as long as they like. So what these
cost is spent in the turns of their own feeds (`Hub._serve_line`), a few hundred looks at a time.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.core.feed import Feed
from penstock.core.matching import Interest
from penstock.core.recent_entries import interest_in


class SlowPatternFeeds:
    """The feeds of one hub that are looked for in turn."""

    def __init__(self) -> None:
        self._interest: Interest[Feed] = Interest()
        self._wanted: dict[Feed, Interest[None]] = {}

    def __contains__(self, feed: Feed) -> bool:
        return feed in self._wanted

    def add(self, feed: Feed, patterns: tuple[str, ...]) -> None:
        """Look for what these patterns cover, for this feed."""
        self._wanted[feed] = interest_in(patterns)
        for pattern in patterns:
            self._interest.add(pattern, feed)

    def remove(self, feed: Feed) -> None:
        """Look no longer for what its patterns cover."""
        del self._wanted[feed]
        for pattern in feed.patterns:
            self._interest.remove(pattern, feed)

    def wanted_by(self, feed: Feed) -> Interest[None] | None:
        """All patterns of a feed; None if it is not one of these."""
        return self._wanted.get(feed)

    def find(self, stream: str) -> Collection[Feed]:
        """Who wants *stream*. This may take long: it is for questions, not for each new entry."""
        return self._interest.find(stream)

    def look_again(self) -> None:
        """Something new has come."""
        for feed in self._wanted:
            feed.look_again()
