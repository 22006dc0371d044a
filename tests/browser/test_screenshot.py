"""The command that takes the README's picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.testing import require_program
from tests.faults.children import ENVIRONMENT

ROOT = Path(__file__).parents[2]


def test_the_command_takes_a_picture_of_a_console_that_shows_something(tmp_path: Path) -> None:
    require_program("chromium")
    picture = tmp_path / "console.png"

    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "screenshot.py", picture, "3"],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )

    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 40_000  # an empty page has a tenth of that
