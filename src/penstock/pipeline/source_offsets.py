"""Where a read of `format("penstock")` is, and which slices a batch has. No I/O here.

Spark keeps an offset in its checkpoint and may come back to it after a restart with other options. A batch must
then be cut exactly as before: else rows that were written under its old cuts are written again under new ones. So an
offset carries the cuts of the batch that it ends: {"upto": 2000, "cuts": "0,1024,2000"}. Where a read went on without
ids that were trimmed before it came to them, it says which as well: {…, "cuts": "300,1024,2000", "lost": "0,300"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.errors import InputInvalid


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows with ids in (lo, hi]: what one task reads, as often as it must."""

    lo: int
    hi: int


def offset_of(upto: int, cuts: Sequence[Cut] = (), lost: Cut | None = None) -> dict[str, str | int]:
    """The offset at *upto*, with the cuts of the batch that ends there, and the ids that were *lost* before these."""
    numbers = [cuts[0].lo, *(cut.hi for cut in cuts)] if cuts else []
    said = {"lost": f"{lost.lo},{lost.hi}"} if lost else {}
    return {"upto": upto, "cuts": ",".join(map(str, numbers)), **said}


def lost_before(after: int, begin: int) -> Cut | None:
    """What is missing between the end of the last batch and the first id that the log still has."""
    return Cut(after, begin) if begin > after else None


def position_of(offset: Mapping[str, str | int]) -> int:
    """The id that an offset stands for."""
    return int(offset["upto"])


def cuts_between(start: Mapping[str, str | int], end: Mapping[str, str | int]) -> list[Cut]:
    """The cuts of the batch from *start* to *end*, as they were when it was planned first."""
    if position_of(start) == position_of(end):
        return []
    lost, numbers = _numbers(end.get("lost", "")), _numbers(end["cuts"])
    reached = lost + (numbers[1:] if lost and numbers[:1] == lost[-1:] else numbers)
    if not reached or reached[0] != position_of(start) or reached[-1] != position_of(end):
        raise InputInvalid(
            "the checkpoint",
            f"holds a batch {end['cuts']} up to {position_of(end)}, but it begins at {position_of(start)}",
            remedy="It belongs to another consumer or server: begin with a new checkpoint and a new consumer name.",
        )
    return _cuts(numbers)


def cuts_given(text: str) -> list[Cut]:
    """The cuts of the option `cuts`: ids with commas, where the first slice begins and where each one ends."""
    parts = text.split(",")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputInvalid("option cuts", f"{text[:40]!r} is not a list of at least two ids")
    return _cuts([int(part) for part in parts])


def _numbers(text: str | int) -> list[int]:
    return [int(one) for one in str(text).split(",") if one]


def _cuts(numbers: Sequence[int]) -> list[Cut]:
    if any(hi <= lo for lo, hi in pairwise(numbers)):
        raise InputInvalid("cuts", f"{numbers} do not rise")
    return [Cut(lo, hi) for lo, hi in pairwise(numbers)]


def cuts_of(slices: Iterable[Mapping[str, int]]) -> list[Cut]:
    """The cuts of a plan."""
    return [Cut(one["lo"], one["hi"]) for one in slices]


def narrow(after: int, upto: int, bounds: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """The part of (after, upto] that comparisons of `id` leave: pairs like (">=", 17)."""
    for sign, value in bounds:
        if sign in (">", ">=", "="):
            after = max(after, value if sign == ">" else value - 1)
        if sign in ("<", "<=", "="):
            upto = min(upto, value - 1 if sign == "<" else value)
    return after, max(after, upto)
