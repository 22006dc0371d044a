"""A position is the same before and after the fold: what was sent up to there is acked, at the same time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.ledger import Recipient
from penstock.core.why import Why
from penstock.pipeline.jobs import ledger
from penstock.values import Batch, Draft
from penstock.wire.ledger import verdict
from penstock.wire.table_columns import TABLES, outcomes_sql
from tests.engines.test_deliveries import World
from tests.pipeline.test_transforms import batch, decoded, fold, rows_of

PEOPLE = [Recipient(door, name) for door, name in (("sps", "1"), ("sps", "1/phone"), ("v1", "1"))]
STREAMS = ("/a", "/b")


def test_positions_are_a_table_of_their_own() -> None:
    one = batch(0, ("sent", "/a", 1, 1, "a"), ("confirmed", "", 0, 4, "b"), ("confirmed", "", 0, 4, "a"))
    two = batch(1, ("confirmed", "", 0, 4, "a"), ("confirmed", "/b", 0, 4, "a"), ("confirmed", "", 0, 6, "a"))
    whole = decoded(one, two)

    assert rows_of(fold(whole), "recipient", "stream", "first", "last", "state") == [("a", "/a", 1, 1, "sent")]
    said = ledger.first_positions(ledger.positions_of(whole))
    assert [one.name for one in TABLES["positions"]] == said.schema.names
    found = sorted(
        (row["recipient"], row["stream"], row["upto"], row["time"].microsecond // 1000) for row in said.to_pylist()
    )
    assert found == [("a", "", 4, 0), ("a", "", 6, 2), ("a", "/b", 4, 1), ("b", "", 4, 1)]
    again = ledger.first_positions(pa.concat_tables([said, ledger.positions_of(whole)]))
    assert rows_of(again) == rows_of(said)


async def write_history(world: World, seed: int) -> list[int]:
    """Entries, and what became of them for three recipients, in batches of the ledger; return the entries' ids."""
    chance, ids = random.Random(seed), []
    await world.ledger.open(world.engine.registry)
    for _ in range(60):
        world.clock.advance(0.01)
        stream = chance.choice(STREAMS)
        ids.append((await world.log.append(Batch((Draft(stream, b"x"),)))).last.id)
        for who in PEOPLE:
            if chance.random() < 0.6:
                world.ledger.sent(who, stream, ids[-1], ids[-1])
            if chance.random() < 0.2:
                world.ledger.record(who, "dead", stream, ids[-1], ids[-1])
            if chance.random() < 0.15:
                world.ledger.confirm(who, chance.choice(ids), chance.choice(("", *STREAMS)))
        if chance.random() < 0.3:
            await world.ledger.flush()
    await world.ledger.flush()
    return ids


async def told(why: Why, ids: list[int]) -> list[Any]:
    """Verdicts and what they rest on; words where that is nothing. Things of one moment have no order."""
    answers = [await why.entry(id, name) for id in ids for name in ("1", "1/phone")]
    return [(one.verdict, sorted((e.ms, e.state, e.door) for e in one.events) or one.words) for one in answers]


async def test_why_says_the_same_before_and_after_the_fold(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.lake:
        ids = await write_history(world, seed=7)
        before = await told(world.why, ids)
        assert {"acked", "sent", "dead", "no_record"} <= {verdict for verdict, *_ in before}

        page = await world.log.read_after(("/_ledger",), 0)
        middle, done = page.entries[len(page.entries) // 2].id, world.log.followed
        for lo, hi in ((0, middle), (middle, done)):
            records = decoded(*(one.body for one in page.entries if lo < one.id <= hi))
            world.write("deliveries", lo, hi, fold(records).to_pylist())
            said = ledger.first_positions(ledger.positions_of(records))
            world.write("positions", lo, hi, said.to_pylist())
        await world.publish(done)

        assert await told(world.why, ids) == before


def viewed(records: pa.Table, sql: str) -> list[tuple[Any, ...]]:
    """Rows of `delivery_outcomes`, in DuckDB, of these records: who, the last id, what became of it, and when."""
    with duckdb.connect() as connection:
        connection.register("deliveries", fold(records))
        connection.register("positions", ledger.first_positions(ledger.positions_of(records)))
        rows = connection.sql(f"SELECT door, recipient, last, state, epoch_ms(acked_time) FROM ({sql})").fetchall()
    return sorted(rows, key=str)


async def told_by_door(why: Why, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What `why` says of the same deliveries."""
    found = []
    for door, recipient, id, *_ in rows:
        events = [event for event in (await why.entry(id, recipient)).events if event.door == door]
        state = verdict(((door, "", 0), event.state, event.ms) for event in events)
        acked = next((event.ms for event in events if event.state == "acked"), None)
        found.append((door, recipient, id, state, acked))
    return found


@pytest.mark.parametrize("sabotage", [
    None, (" AND s.stream = d.stream", ""), ("min(time)", "max(time)"), ("AND d.last <= a.upto", "AND 0 <= a.upto"),
    ("'sent', 'retried'", "'sent', 'retried', 'dead'"), ("ORDER BY upto DESC", "ORDER BY upto"),
], ids=["", "of any stream", "the latest", "sent later", "given up", "those before it"])  # fmt: skip
async def test_the_view_says_what_why_says(tmp_path: Path, sabotage: tuple[str, str] | None) -> None:
    world = World(tmp_path)
    async with world.lake:
        await write_history(world, seed=7)
        batches = await world.log.read_after(("/_ledger",), 0)
        records, sql = decoded(*(one.body for one in batches.entries)), outcomes_sql()
        rows = viewed(records, sql.replace(*sabotage) if sabotage else sql)
        said = await told_by_door(world.why, rows)

    if sabotage:
        assert rows != said
    else:
        assert rows == said
        assert len(rows) == fold(records).num_rows
        assert {"acked", "sent", "dead"} <= {state for *_, state, _ in rows}
