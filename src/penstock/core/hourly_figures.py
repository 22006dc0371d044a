"""What the pipeline has summed up by hour, and how large its tables are: what a lake tells whoever draws charts.

Latencies come in classes that double, so a percentile is the upper end of the class that it falls into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

PERCENTILES: Final = (50, 90, 99)


class HourSum(msgspec.Struct):
    """One hour of one door; the door is empty for what was published."""

    hour_ms: int
    door: str
    states: dict[str, int]  # how many, by state of the ledger
    bytes: int  # that were published
    latency_ms: dict[str, tuple[int, int, int]]  # by state: 50, 90 and 99 of 100 took no longer


class TableSize(msgspec.Struct):
    """A table of the lake."""

    table: str
    files: int
    rows: int
    bytes: int
    written_ms: int | None  # the newest file


class LakeFigures(Protocol):
    """What can be asked of a lake."""

    async def hours(self, since_ms: int) -> list[HourSum]:
        """The sums of each hour and door from a time on, in order."""
        ...

    async def tables(self) -> list[TableSize]:
        """The tables, with their sizes."""
        ...


HourRow = tuple[int, str, str, int | None, int, int]
"""hour_ms, door, state, latency class, count, bytes"""


def add_up(rows: Iterable[HourRow]) -> list[HourSum]:
    """Rows of `rollup_hourly`, in any order, by hour and door."""
    found: dict[tuple[int, str], HourSum] = {}
    classes: dict[tuple[int, str], dict[str, dict[int, int]]] = {}
    for hour_ms, door, state, latency, count, size in rows:
        key = (hour_ms, door)
        one = found.setdefault(key, HourSum(hour_ms, door, {}, 0, {}))
        one.states[state] = one.states.get(state, 0) + count
        one.bytes += size
        if latency is not None:
            of_state = classes.setdefault(key, {}).setdefault(state, {})
            of_state[latency] = of_state.get(latency, 0) + count
    for key, by_state in classes.items():
        found[key].latency_ms = {state: percentiles(counts) for state, counts in by_state.items()}
    return [found[key] for key in sorted(found)]


def percentiles(counts: Mapping[int, int]) -> tuple[int, int, int]:
    """The classes that 50, 90 and 99 of 100 do not exceed."""
    total, reached = sum(counts.values()), 0
    found: list[int] = []
    for latency in sorted(counts):
        reached += counts[latency]
        while len(found) < len(PERCENTILES) and reached * 100 >= total * PERCENTILES[len(found)]:
            found.append(latency)
    return found[0], found[1], found[2]
