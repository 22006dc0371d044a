"""What became of a delivery is the same before and after the fold, whatever was recorded of it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from penstock.core.ledger import STREAM, Recipient
from penstock.wire.ledger import STATES
from tests.engines.test_deliveries import World
from tests.pipeline.test_transforms import decoded, fold

WHO = Recipient("msgstream", "alice")
NAMES = [state.name for state in STATES]
STORIES = [(one,) for one in NAMES] + list(product(NAMES, NAMES))


async def test_why_says_the_same_before_and_after_the_fold(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine, book, why, clock = world.engine, world.ledger, world.why, world.clock
    async with world.lake:
        await book.open(engine.registry)
        for pause in (0, 0.001):
            for number, story in enumerate(STORIES, 1):
                for state in story:
                    book.record_item(WHO, state, f"{pause} {'+'.join(story)}", "2026_11", number, reason=f"of {state}")
                    clock.advance(pause)
        await book.flush()
        keys = [f"{pause} {'+'.join(story)}" for pause in (0, 0.001) for story in STORIES]
        before = {key: (await why.item(key, "alice")).verdict for key in keys}

        bodies = [entry.body for entry in (await engine.log.read_after((STREAM,), 0)).entries]
        folded = fold(decoded(*bodies)).to_pylist()
        world.write("deliveries", 0, engine.log.followed, folded)
        await world.publish(engine.log.followed)

        assert {key: (await why.item(key, "alice")).verdict for key in keys} == before
        assert len(folded) == len(keys)
    assert [before["0.001 " + story] for story in ("retried+sent", "sent+retried", "accepted+moved", "sent+acked")] == [
        "sent", "retried", "accepted", "acked",
    ]  # fmt: skip
