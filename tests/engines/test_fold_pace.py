"""However fast entries come, what is not folded yet stays bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.engines.sqlite import open_sqlite
from penstock.engines.sqlite.engine import SqliteOptions
from penstock.engines.sqlite.writer import Limits, SqliteWriter
from penstock.values import Batch, Draft

FOLD = 512


class Watched(SqliteWriter):
    """A writer that remembers the most entries it has held unfolded."""

    most = 0

    def _commit(self, group: object) -> None:
        super()._commit(group)  # type: ignore[arg-type]
        Watched.most = max(Watched.most, self._recent.count)


class Dawdling(Watched):
    """The sabotage: one step of folding per group, however large the group."""

    def _go_on_folding(self, whole: object, appended: int) -> None:
        super()._go_on_folding(whole, 0)  # type: ignore[arg-type]


async def most_unfolded(directory: Path, writer: type[Watched]) -> int:
    """The most unfolded entries while many large batches make new streams."""
    Watched.most = 0
    options = SqliteOptions(limits=Limits(fold_entries=FOLD, fold_rows=32), writer=writer)
    async with open_sqlite(directory, node="n1", options=options) as engine:
        for round in range(10):
            batches = [
                Batch(tuple(Draft(f"/users/{round}-{part}-{number}", b"x") for number in range(100)))
                for part in range(10)
            ]
            await asyncio.gather(*map(engine.log.append, batches))
    return Watched.most


async def test_a_flood_of_new_streams_is_folded_as_it_comes(tmp_path: Path) -> None:
    assert await most_unfolded(tmp_path, Watched) <= FOLD + 3 * 2_001


async def test_a_fold_that_dawdles_is_found_out(tmp_path: Path) -> None:
    assert await most_unfolded(tmp_path, Dawdling) > FOLD + 3 * 2_001
