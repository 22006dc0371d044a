"""A disk without space: nothing is acknowledged, reads go on, and so do writes once there is space again."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.faults.children import ENVIRONMENT, command
from tests.faults.full_disk_child import APPENDS


def fill_disk(directory: Path, *arguments: str) -> dict:
    """What the child saw on a disk of eight megabytes, of which three are free."""
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    child = subprocess.run(
        [*alone, *command("tests.faults.full_disk_child", directory, *arguments)],
        check=True,
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    return json.loads(child.stdout)


def broken(seen: dict) -> list[str]:
    """What is wrong with it. An empty list is the good answer."""
    outcomes = [*seen["outcomes"], *seen["afterwards"]]
    stored = sum(code == "stored" for codes in outcomes for code in codes[:APPENDS])
    stored_before_full = sum(code == "stored" for codes in seen["outcomes"] for code in codes[:APPENDS])
    checks = {
        "never was full": set(seen["outcomes"][-1]) == {"disk_full"},
        "fails in another way": {code for codes in outcomes for code in codes} == {"stored", "disk_full"},
        "does not recover": {code for codes in seen["afterwards"] for code in codes} == {"stored"},
        "does not read while it is full": seen["readable while full"] == stored_before_full,
        "lost or added entries": seen["indexes"] == list(range(stored)),
        "lost its place": seen["reopened"] == seen["followed"],
    }
    return [what for what, good in checks.items() if not good]


def test_nothing_is_acknowledged_on_a_full_disk_and_all_goes_on_afterwards(tmp_path):
    seen = fill_disk(tmp_path)

    assert broken(seen) == [], seen


def test_an_engine_that_ignores_the_full_disk_is_found_out(tmp_path):
    """The sabotage: a commit that failed is answered as if it had not."""
    assert broken(fill_disk(tmp_path, "forgiving"))
