"""Looks through all names, and reads by pattern: many at once, beside somebody who reads one stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.core.clock import WallClock
from penstock.engines.sqlite.engine import open_sqlite
from penstock.engines.sqlite.reader import SqliteReader
from penstock.engines.sqlite.reader_threads import Readers
from penstock.testing import RunningServer
from penstock.values import Batch, Draft
from tests.api.client import ask
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

STREAMS = 5_000
SCANNERS = 24

T = TypeVar("T")


def scan_in_the_loop() -> None:
    """A scan is made by the server's loop, and from its first slice to its last without a pause."""

    async def scan(self: Readers, function: Callable[[SqliteReader], T]) -> T:
        return self.here(function)

    Readers.scan = scan  # type: ignore[method-assign]


@pytest.mark.parametrize("sabotage", [None, scan_in_the_loop])
async def test_scans_of_all_names_hold_up_no_reader(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    """That they leave a thread to the others is shown, with its own sabotage, in `tests/engines/test_scans.py`."""
    (tmp_path / "data").mkdir()
    async with open_sqlite(tmp_path / "data", node="a", server="penstock", clock=WallClock()) as engine:
        for begin in range(0, STREAMS, 500):
            drafts = tuple(Draft(f"/n{number}/y", b"x") for number in range(begin, begin + 500))
            await engine.log.append(Batch(drafts))

    with start_sabotaged(tmp_path / "data", sabotage) as server:
        with beside(server) as bystander, ThreadPoolExecutor(SCANNERS) as pool:
            assert set(pool.map(lambda _: scan(server), range(2 * SCANNERS))) == {(200, 200)}
        if sabotage is None:
            bystander.noticed_nothing()
        else:
            with pytest.raises(AssertionError):
                bystander.noticed_nothing()


def scan(server: RunningServer) -> tuple[int, int]:
    names = ask(server, "GET", "/v1/streams", pattern="/*/x")
    entries = ask(server, "GET", "/v1/read", streams="/*/x", after=0)
    assert (names.json["streams"], entries.json["entries"]) == ([], [])
    return names.status, entries.status
