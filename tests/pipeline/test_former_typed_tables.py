"""Data of an earlier version, in which each typed table had a record of its own: its tables and their files stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.core.clock import WallClock
from penstock.core.typed_tables import FORMER_PREFIX, KEY, decode_tables
from penstock.engines.sqlite.engine import open_sqlite
from penstock.node import node
from penstock.pipeline.jobs import typed
from tests.bystander.sabotaged import start_sabotaged
from tests.pipeline.test_typed_tables import World


async def move_back(data: Path) -> None:
    """Keep the tables of a stopped server as the earlier version kept them."""
    async with open_sqlite(data, node="a", server="penstock", clock=WallClock()) as engine:
        for name, table in decode_tables(await engine.registry.get(KEY)).items():
            await engine.registry.put(FORMER_PREFIX + name, msgspec.json.encode(table))
        await engine.registry.delete(KEY)


async def left_over(data: Path) -> list[str]:
    async with open_sqlite(data, node="a", server="penstock", clock=WallClock()) as engine:
        return [record.key for record in await engine.registry.list(FORMER_PREFIX)]


def adopt_nothing() -> None:
    """The sabotage: a node starts without a look at the former records."""

    async def adopt(registry):
        pass

    node.adopt_former_records = adopt  # type: ignore[attr-defined]


@pytest.mark.parametrize("sabotage", [None, adopt_nothing], ids=["honest", "sabotage: nothing is adopted"])
def test_the_tables_of_an_earlier_version_are_taken_over_with_their_files(tmp_path: Path, sabotage) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    lake.mkdir()
    # Given a table with a row, and its declaration where the earlier version had it
    with start_sabotaged(data, None, lake_url=lake) as server:
        world = World(server, lake)
        world.declare()
        (tea,) = world.order({"item": "tea"})
        world.work()
        table = world.table
    asyncio.run(move_back(data))
    # When a node starts, and the pipeline makes its turns, twice
    for _ in range(2):
        with start_sabotaged(data, sabotage, lake_url=lake) as server:
            again = World(server, lake)
            again.name = world.name
            typed.run(again.place(), {})
            # Then the table is declared as it was, and its files are there
            assert (again.client.typed_tables() == [table]) is (sabotage is None)
            assert any(again.lake.store.list(table.key)) is (sabotage is None)
            assert sabotage or again.rows() == [(tea, "tea")]
    assert sabotage or asyncio.run(left_over(data)) == []
