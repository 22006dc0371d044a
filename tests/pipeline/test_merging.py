"""How new rows find the files that have their keys, and how many buckets they need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline import jobs, merging
from penstock.pipeline.jobs.ledger import DELIVERIES
from penstock.pipeline.jobs.rollup import ROLLUP

HOUR = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rows:
    """A source of rows that are in memory."""

    table: pa.Table

    @property
    def count(self) -> int:
        return self.table.num_rows

    def rows(self) -> Iterator[pa.Table]:
        yield self.table


def sums(count: int, streams: int) -> Rows:
    rows = [
        {"hour": HOUR, "stream": f"/users/{number % streams}", "door": "sps", "state": "sent", "latency_ms": 1,
         "count": 1, "bytes": 0}
        for number in range(count)
    ]  # fmt: skip
    return Rows(pa.Table.from_pylist(rows))


@pytest.mark.parametrize(("streams", "buckets"), [(10, 1), (1000, 10)])
def test_there_are_as_many_buckets_as_rows_are_left_when_equal_keys_are_one(
    streams: int, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TASK_ROWS", 300)
    asked: list[int] = []
    monkeypatch.setattr(merging, "in_buckets", lambda place, table, sources, tasks, finish: asked.append(tasks) or [])
    place = SimpleNamespace(lake=SimpleNamespace(store=None))
    fresh = [sums(1000, streams) for _ in range(3)]

    merging.merge(place, ROLLUP, fresh, [], None)
    merging.merge(place, replace(ROLLUP, repeats=False), fresh, [], None)

    assert asked == [buckets, 10]  # one that knows of no repeats takes each row for one that is left


def deliveries(*firsts: int) -> Rows:
    rows = [{"first": first, "month": "", "recipient": "a", "key": "", "door": "sps", "stream": "/s", "number": 0}
            for first in firsts]  # fmt: skip
    return Rows(pa.Table.from_pylist(rows))


def test_only_keys_that_a_file_may_have_come_to_the_driver() -> None:
    keys, bounds = ("first", "recipient"), [[(10, 19), ("", ""), ("a", "a")]]
    fresh = [deliveries(*range(1000, 2000)), deliveries(15)]

    found = merging._KeyHashes(keys, DELIVERIES.ranges, bounds)(fresh)

    assert list(found) == list(merging.row_hashes(deliveries(15).table, keys))


@given(st.lists(st.integers(0, 50), max_size=20), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_a_file_with_one_of_the_keys_is_found(wanted: list[int], held: list[int]) -> None:
    keys = ("first", "recipient")
    hashes = numpy.unique(merging.row_hashes(deliveries(*wanted).table, keys)) if wanted else numpy.empty(0, "uint64")
    source: Any = SimpleNamespace(location="one", rows=deliveries(*held).rows)

    assert merging._HoldsAny(keys, hashes)([source]) == ({"one"} if set(wanted) & set(held) else set())
