"""What is asked of the lake, and what it answers with besides entries."""

from __future__ import annotations

from typing import NamedTuple


class Look(NamedTuple):
    """How a page is to be read."""

    limit: int
    limit_bytes: int
    meta: bool  # meta entries and tombstones, too
    now_ms: int


class Line(NamedTuple):
    """Where a line of a stream lies within its chunk."""

    id: int
    offset: int
    size: int
