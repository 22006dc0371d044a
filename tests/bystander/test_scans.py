"""Looks through all names, and reads by pattern: many at once, beside somebody who reads one stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.core.clock import WallClock
from penstock.storage.sqlite.engine import open_sqlite
from penstock.testing import RunningServer, start_server
from penstock.values import Batch, Draft
from tests.bystander.watching import beside
from tests.server.api import ask

STREAMS = 5_000
SCANNERS = 24


async def test_scans_of_all_names_hold_up_no_reader(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    async with open_sqlite(tmp_path / "data", node="a", server="penstock", clock=WallClock()) as engine:
        for begin in range(0, STREAMS, 500):
            drafts = tuple(Draft(f"/n{number}/y", b"x") for number in range(begin, begin + 500))
            await engine.log.append(Batch(drafts))

    with start_server(tmp_path / "data") as server:
        with beside(server) as bystander, ThreadPoolExecutor(SCANNERS) as pool:
            assert set(pool.map(lambda _: scan(server), range(2 * SCANNERS))) == {(200, 200)}
        bystander.noticed_nothing()


def scan(server: RunningServer) -> tuple[int, int]:
    names = ask(server, "GET", "/v1/streams", pattern="/*/x")
    entries = ask(server, "GET", "/v1/read", streams="/*/x", after=0)
    assert (names.json["streams"], entries.json["entries"]) == ([], [])
    return names.status, entries.status
