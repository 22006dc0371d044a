"""Named points at which a test can make something go wrong."""

from __future__ import annotations

from typing import Protocol


class SqliteFaults(Protocol):
    """Called by the writer thread at "before commit", "after commit", "before acknowledge", "in fold"."""

    def at(self, point: str) -> None:
        """Return, raise `OSError`, or end the process."""
        ...
