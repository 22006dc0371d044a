"""A crash at any moment, with any legal disk: what was acknowledged is there, once, in order.

Killing a process cannot show a missing fsync, because the kernel keeps what was written. So the writes, syncs and
acknowledgements of a real run are recorded, and the disks that a power failure might have left are made from them.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.faults.crash_states import CrashState, crash_states
from tests.faults.promises import broken_promises
from tests.faults.traces import Acknowledge, Step, Sync, Write, record

POINTS = 30  # crashes per run; each leaves some seven possible disks
PARTS = 8  # of all the steps, a test each


def run_recorded(directory: Path, sabotage: str, seed: int) -> list[Step]:
    return record("tests.faults.storage_child", directory, "--sabotage", sabotage, "--seed", str(seed))


def choose_points(steps: list[Step], seed: int) -> list[int]:
    """Before and after acknowledgements and syncs things change; in between a few by chance."""
    telling = [n for n, step in enumerate(steps) if isinstance(step, Acknowledge | Sync)]
    telling += [n + 1 for n in telling]
    return random.Random(seed).sample(sorted(set(telling)), min(POINTS, len(telling)))


def check(state: CrashState, directory: Path) -> list[str]:
    state.write(directory)
    try:
        return asyncio.run(broken_promises(directory, state.acknowledged))
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def seed() -> int:
    """Another one each time; a failure shows it."""
    chosen = random.SystemRandom().randrange(10**6)
    print(f"seed {chosen}")  # noqa: T201
    return chosen


def test_every_crash_leaves_what_was_acknowledged(tmp_path, seed):
    # Given everything that a run did to its disk
    steps = run_recorded(tmp_path / "run", "none", seed)
    assert sum(isinstance(step, Acknowledge) for step in steps) > 50
    assert {step.file for step in steps if isinstance(step, Write)} >= {"penstock.db", "penstock.db-wal"}
    # When it is cut off anywhere, with any disk that is possible then
    for state in crash_states(steps, choose_points(steps, seed), seed):
        wrong = check(state, tmp_path / "state")
        # Then nothing that was acknowledged is missing
        assert not wrong, (seed, state.name, wrong[:5])


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_crash_at_every_step_leaves_what_was_acknowledged(tmp_path, seed, part):
    """The same at each step of a trace, and with each write lost or the last to arrive."""
    steps = run_recorded(tmp_path / "run", "none", seed)
    for state in crash_states(steps, list(range(part, len(steps), PARTS)), seed, thorough=True):
        wrong = check(state, tmp_path / "state")
        assert not wrong, (seed, state.name, wrong[:5])


@pytest.mark.parametrize("sabotage", ["no fsync", "hasty"])
def test_an_engine_that_does_not_wait_for_the_disk_is_found_out(tmp_path, seed, sabotage):
    """The sabotage: without fsync, or with the answer before the commit, the same check must fail."""
    steps = run_recorded(tmp_path / "run", sabotage, seed)
    states = crash_states(steps, choose_points(steps, seed), seed)

    assert any(check(state, tmp_path / "state") for state in states), seed
