"""What an audit keeps of the server's streams and mailboxes is small, however many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.pipeline.audit_cut import TASK_NAMES, gather
from penstock.pipeline.audit_queries import HEADS, MAILBOXES

NAMES = 6 * TASK_NAMES
NAME = len("/users/device-00000000/inbox")


def heads() -> Iterator[list[Any]]:
    """As they come from the server: with objects of their own."""
    return ([f"/users/device-{number:08d}/inbox", number, 3, 10**6 + number, 10**9 + number] for number in range(NAMES))


def bytes_of(keep: Callable[[], object]) -> float:
    """Bytes of Python's for each name, at most."""
    tracemalloc.start()
    kept = keep()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept
    return peak / NAMES


@pytest.mark.parametrize("sabotaged", [False, True], ids=["honest", "sabotage: a list"])
def test_a_cut_keeps_no_objects_of_its_streams(sabotaged: bool) -> None:
    found = bytes_of(lambda: list(heads()) if sabotaged else gather(heads(), HEADS))

    assert (found < 150) is not sabotaged, f"{found} bytes of Python's for each name"
    assert gather(heads(), HEADS).nbytes / NAMES < NAME + 4 * 8 + 8


def test_a_cut_has_all_that_was_gathered() -> None:
    boxes = [("alice", "2026-11", 4, [1, 3], 0), ("bob", "2026-11", 1, [], 2)]

    assert [tuple(row.values()) for row in gather(iter(boxes), MAILBOXES).to_pylist()] == boxes
    assert gather(iter(()), HEADS).num_rows == 0
