"""Searches through the whole lake over HTTP, beside somebody who reads one entry that is in the lake."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from penstock.engines.lake import reader
from penstock.engines.lake.files import TableFiles
from penstock.testing import RunningServer, wait_until
from tests.api.client import ask, publish
from tests.api.lake_rig import archive, trim
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

SEARCHED, READ = "/mallory/a", "/innocent"
BEGAN = "search.began"
SEARCHES = 4


def a_lake_without_end() -> None:
    """The setting: whoever looks for an entry of one stream looks through the files again and again."""
    from penstock.engines.lake.search import Search

    honest = Search.find_index

    def find_index(self: Search, files: TableFiles, stream: str, index: int) -> Generator[None, None, int | None]:
        if stream == SEARCHED:
            logging.getLogger("penstock").info(BEGAN)
        while stream == SEARCHED:
            yield from honest(self, files, READ, index)
        return (yield from honest(self, files, stream, index))

    Search.find_index = find_index  # type: ignore[method-assign]


def each_to_its_end() -> None:
    """The sabotage: a search keeps its thread until it has found something."""
    a_lake_without_end()

    def go_on(self: reader._Sliced[int]) -> bool:
        reader.LAKE_SECONDS = 1  # type: ignore[misc]  # from now on nobody gets an answer: sooner is as good
        steps = self._search()
        try:
            while True:
                next(steps)
        except StopIteration as over:
            self.found = over.value
        return True

    reader._Sliced.go_on = go_on  # type: ignore[assignment, method-assign]


def search_and_read(server: RunningServer, lake: Path) -> None:
    publish(server, SEARCHED)
    publish(server, READ, b"mine")
    assert trim(server, upto=archive(server, lake), apply=True).json["entries"]
    with Hostile(server, "/mallory") as hostile:
        with beside(server) as bystander:
            for _ in range(SEARCHES):
                hostile.hold(hostile.head("GET", f"/v1/read?stream={SEARCHED}&from=0"))
            wait_until(lambda: server.log_text().count(BEGAN) >= reader.THREADS)
            for _ in range(3):
                found = ask(server, "GET", "/v1/read", stream=READ, **{"from": 0})
                assert found.status == 200, found.body
                assert [entry["data"] for entry in found.json["entries"]] == ["mine"]
        bystander.noticed_nothing()


@pytest.mark.parametrize("sabotage", [a_lake_without_end, each_to_its_end])
def test_searches_of_the_lake_leave_others_their_turn(tmp_path: Path, sabotage: Callable[[], None]) -> None:
    (tmp_path / "lake").mkdir()
    with start_sabotaged(tmp_path / "data", sabotage, lake_url=tmp_path / "lake") as server:
        if sabotage is a_lake_without_end:
            search_and_read(server, tmp_path / "lake")
        else:
            with pytest.raises(AssertionError, match="lake_unreadable"):
                search_and_read(server, tmp_path / "lake")
