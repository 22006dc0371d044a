"""How far the log may be trimmed: the question and its answer. `node/trim_limit.py` knows it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Watermark(msgspec.Struct):
    """How far a table of the lake is. The pipeline records it in the registry, as `lake/TABLE`."""

    done: int = 0
    done_ms: int = 0


class Bound(msgspec.Struct, frozen=True):
    """The highest id that may be trimmed, and what holds it there."""

    upto: int
    reason: str
    archived: bool = True  # False: no pipeline has ever run here


class TrimLimit(Protocol):
    """Says how far the log may be trimmed. Ask anew before each trim."""

    async def bound(self) -> Bound:
        """How far the log may be trimmed now."""
        ...

    async def watermarks(self) -> dict[str, Watermark]:
        """How far each table is, as the pipeline has recorded it."""
        ...
