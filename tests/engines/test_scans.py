"""Scans and searches: however many there are, a read by name or number comes through."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from penstock.core.clock import WallClock
from penstock.engines.lake import reader as lakes
from penstock.engines.lake.reader import open_lake
from penstock.engines.memory import MemoryEngine
from penstock.engines.sqlite.engine import open_sqlite
from penstock.engines.sqlite.reader_threads import Readers
from penstock.values import Batch, Draft

WITHIN = {True: 20.0, False: 0.3}  # without its guard a read never comes
STREAMS = 2500


def run_anywhere(self: Readers, function: object) -> object:
    """A scan as any other read: the lane is gone."""
    return self.run(function)


@pytest.mark.parametrize("guarded", [True, False])
async def test_scans_leave_a_thread_to_the_others(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(Readers, "scan", run_anywhere)
    async with open_sqlite(tmp_path, node="a", server="a", clock=WallClock()) as engine:
        await engine.log.append(Batch((Draft("/here", b"x"),)))
        # Given more scans than threads, none of which comes to its end
        stand = threading.Event()
        scans = [asyncio.ensure_future(engine._readers.scan(lambda _: stand.wait())) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            # When somebody reads one stream
            async with asyncio.timeout(WITHIN[guarded]):
                page = await engine.log.read_index("/here", 0)
            came = [entry.body for entry in page.entries] == [b"x"]
        except TimeoutError:
            came = False
        finally:
            stand.set()
            await asyncio.gather(*scans)
    # Then he waits for none of them; without the lane he would
    assert came == guarded


async def test_a_look_through_all_names_is_made_in_slices(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path, node="a", server="a", clock=WallClock()) as engine:
        for begin in range(0, STREAMS, 500):
            drafts = tuple(Draft(f"/n{number:05}/x", b"") for number in range(begin, begin + 500))
            await engine.log.append(Batch(drafts))
        await engine.log.append(Batch((Draft("/zzz/y", b""),)))

        found, after = await engine._readers.run(lambda reader: reader.heads("/*/y", "", 10))
        heads = await engine.log.heads("/*/y")
        pages = [await engine.log.heads("/*/x", limit=700)]
        while len(pages[-1]) == 700:
            pages.append(await engine.log.heads("/*/x", after=pages[-1][-1].stream, limit=700))

    assert (found, after) == ([], "/n00499")  # parents are streams, too: a thousand names, then it is others' turn
    assert [head.stream for head in heads] == ["/zzz/y"]
    names = [head.stream for page in pages for head in page]
    assert names == [f"/n{number:05}/x" for number in range(STREAMS)]


def endless() -> Generator[None, None, int]:
    """A search that finds nothing, for ever."""
    while True:
        yield


@pytest.mark.parametrize("guarded", [True, False])
async def test_searches_of_the_lake_hold_up_nobody(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = threading.Event()
    if not guarded:
        monkeypatch.setattr(lakes._Sliced, "go_on", lambda self: stand.wait())  # to its end, in one go
    async with open_lake(str(tmp_path), MemoryEngine().registry) as lake:
        searches = [asyncio.ensure_future(lake._in_slices(endless)) for _ in range(4)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(WITHIN[guarded]):
                came = await lake.run(lambda: True)
        except TimeoutError:
            came = False
        finally:
            stand.set()
            for search in searches:
                search.cancel()
            await asyncio.gather(*searches, return_exceptions=True)
    assert came == guarded


async def test_a_search_that_misses_a_file_begins_anew(tmp_path: Path) -> None:
    tries = 0

    def search() -> Generator[None, None, str]:
        nonlocal tries
        tries += 1
        yield
        if tries == 1:
            raise FileNotFoundError  # compaction has moved it away: from the beginning
        yield
        return "found"

    async with open_lake(str(tmp_path), MemoryEngine().registry) as lake:
        assert await lake._in_slices(search) == "found"
    assert tries == 2
