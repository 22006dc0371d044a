"""kill -9: under load at a moment chosen by a seed, and at the named points of a commit."""

from __future__ import annotations

import asyncio
import random
import subprocess
from pathlib import Path

import pytest

from tests.faults.children import ENVIRONMENT, command
from tests.faults.promises import broken_promises


def run_until_killed(directory: Path, *arguments: object, after: int | None = None) -> list[str]:
    """Start the load; kill it after some acknowledgements, or let it kill itself. Return what it acknowledged."""
    directory.mkdir(exist_ok=True)
    lines: list[str] = []
    child = subprocess.Popen(
        command("tests.faults.storage_child", directory, "--rounds", 10_000, *arguments),
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
        text=True,
    )
    with child:
        for line in child.stdout:
            lines.append(line)
            if len(lines) == after:
                child.kill()
    # A line that the kill cut off was not acknowledged.
    return [line for line in lines if line.endswith("\n")]


@pytest.fixture
def seed() -> int:
    """Another one each time; a failure shows it."""
    chosen = random.SystemRandom().randrange(10**6)
    print(f"seed {chosen}")  # noqa: T201
    return chosen


def test_what_was_acknowledged_survives_kill_9_again_and_again(tmp_path, seed):
    chance = random.Random(seed)
    acknowledged: list[str] = []
    for _ in range(5):
        # Given a load that goes on where the last one was killed
        first_lines = chance.randrange(1, 150)
        acknowledged += run_until_killed(
            tmp_path / "data", "--seed", chance.randrange(10**6), "--publishers", 16, after=first_lines
        )
        # Then everything that any of them acknowledged is there
        wrong = broken(tmp_path / "data", only_entries(acknowledged))
        assert not wrong, (seed, wrong[:5])


def only_entries(lines: list[str]) -> list[str]:
    """Records and items are written anew by every run, entries never."""
    return [line for line in lines if line.startswith('{"entries"')]


@pytest.mark.parametrize("point", ["before commit", "after commit", "before acknowledge", "in fold"])
@pytest.mark.parametrize("times", [1, 9])
def test_a_kill_at_a_named_point_loses_nothing(tmp_path, point, times):
    acknowledged = run_until_killed(tmp_path / "data", "--point", point, "--times", times)

    assert acknowledged or times == 1
    assert broken(tmp_path / "data", acknowledged) == []


def test_an_engine_that_answers_before_it_commits_is_found_out(tmp_path, seed):
    """The sabotage of both tests. A kill may come when nothing was owed, so it gets a few attempts."""
    hasty = ("--sabotage", "hasty", "--publishers", 1)
    at_point = run_until_killed(tmp_path / "point", *hasty, "--point", "before commit", "--times", 9)

    assert broken(tmp_path / "point", at_point)
    assert any(
        broken(directory, run_until_killed(directory, *hasty, "--seed", seed, after=40))
        for directory in (tmp_path / str(attempt) for attempt in range(12))
    )


def broken(directory: Path, acknowledged: list[str]) -> list[str]:
    return asyncio.run(broken_promises(directory, acknowledged))
