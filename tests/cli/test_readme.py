"""The README's commands, pasted one after the other in a folder that holds nothing but the repository's files."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import wait_until
from tests.shown_sessions import run_session, sessions_in, without_values

pytestmark = pytest.mark.doors

ROOT = Path(__file__).parents[2]
PARTS = ("penstock", "README.md", "pyproject.toml", "requirements", "src", "docs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy as it was cloned, with the packages installed: tests/cli/test_wrapper.py has the first call of all."""
    made = tmp_path_factory.mktemp("clone") / "penstock"
    made.mkdir()
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, made / name)
    (made / ".venv").symlink_to(ROOT / ".venv")
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The address of `./penstock up`, on a free port: the usual one may be somebody's."""
    output = folder.parent / "up.out"
    with output.open("wb") as out:
        up = subprocess.Popen(
            ["./penstock", "up", "--no-pipeline", "--listen", "127.0.0.1:0"], cwd=folder, stdout=out, stderr=out
        )
    try:
        yield wait_until(lambda: output.read_text().partition("ready on ")[2].partition(" ")[0], within=60)
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0, output.read_text()


@pytest.mark.parametrize("number", range(3))
def test_each_of_the_three_things_to_try_prints_what_the_readme_shows(folder: Path, url: str, number: int) -> None:
    session = sessions_in(folder / "README.md")[number]

    assert run_session(session, folder, url) == without_values(session.shown)


def test_the_readme_shows_three_things_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text()

    assert len(sessions_in(ROOT / "README.md")) == 3
    first = re.search(r"```sh\n(.*?)```", text, re.DOTALL)[1]
    assert re.findall(r"^\./penstock (\w+)", first, re.MULTILINE) == ["demo", "up"]


def test_the_demo_runs_from_a_clean_folder(folder: Path) -> None:
    done = subprocess.run(
        ["./penstock", "demo", "--fast"], input="\n", cwd=folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "nothing is missing" in done.stdout
    assert not (folder / "penstock-data" / "lake").exists()
