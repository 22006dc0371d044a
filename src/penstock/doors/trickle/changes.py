"""The channel `_changes`: which channels come and go, one JSON segment each, written by the server alone."""

from __future__ import annotations

from penstock.doors.trickle.channels import Channels
from penstock.limits import CHANGES_SEGMENTS
from penstock.wire import trickle
from penstock.wire.trickle_channel import Keep

NAME = "_changes"


class Changes:
    """Writes the feed. It announces itself first, as the original's does."""

    def __init__(self, home: Channels) -> None:
        self._home = home
        keep = Keep(CHANGES_SEGMENTS, home.settings.window_bytes, 0)
        self._channel = home.add_own(NAME, "application/json", keep)
        home.changed = self.write
        self.write((NAME,), ())

    def cut(self, reason: str) -> None:
        """Nobody can take the feed's segments away."""

    def write(self, added: tuple[str, ...], removed: tuple[str, ...]) -> None:
        """Add one message."""
        now = self._home.time()
        segment = self._channel.take(-1, self, now)
        self._channel.write(segment, trickle.changed(added, removed), now)
        self._channel.finish(segment, now)
