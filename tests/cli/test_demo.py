"""`./penstock demo`, as somebody sees it who has never heard of Penstock; and that it finds what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.client.http import HttpClient
from penstock.testing import wait_until
from penstock.testing.waiting import TooLate
from tests.cli.running_demo import started

pytestmark = pytest.mark.doors


def test_the_fast_story_ends_well_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with started(tmp_path, "penstock", "demo", "--fast") as demo:
        said = demo.wait_for("Enter or Ctrl-C")
        # Then what each of them has is what was acknowledged, with a kill -9 between
        (orders, segments) = re.search(r"([\d,]+) orders and (\d+) film segments were acknowledged", said).groups()
        for name in ("phone", "page", "app", "game"):
            assert re.search(rf"^ +{name} +{orders} of {orders}\b", said, re.MULTILINE), said
        assert f"{segments} of {segments} segments" in said
        assert said.index("kill -9  ") < said.index("restart") < said.index("verdict   nothing is missing")
        assert said.count("acked ") == 4
        # And it is readable where it is read
        assert max(map(len, said.splitlines())) <= 80
        assert "\x1b" not in said
        # And the server is there until somebody has seen enough
        server = re.search(r"  (http://127\.0\.0\.1:\d+)/console/#token=[0-9a-f]{32}\n", said)
        assert b"<title>" in HttpClient(server[1], keep=False).send("GET", "/console/")
        assert demo.left_behind() != []
        demo.interrupt()  # tests/cli/test_readme.py has Enter
        assert demo.wait() == 0, demo.said
    assert "Traceback" not in demo.said
    assert demo.left_behind() == []


@pytest.mark.parametrize("when", [pytest.param("listens: Trickle", marks=pytest.mark.long), "kill -9 "])
def test_ctrl_c_ends_it_wherever_it_is(tmp_path: Path, when: str) -> None:
    with started(tmp_path, "penstock", "demo", "--fast") as demo:
        demo.wait_for(when)
        demo.interrupt()
        code = demo.wait()
    assert code == 130, demo.said
    assert "Traceback" not in demo.said
    assert demo.left_behind() == []


def check_kill_ends_the_server(folder: Path, within: float, *command: str) -> None:
    with started(folder, *command, "demo", "--fast") as demo:
        demo.wait_for("is up")
        demo.process.kill()
        demo.process.wait()
        try:
            wait_until(lambda: demo.commands() == [], within=within)
        finally:
            demo.clear_away()


def test_a_kill_of_the_demo_ends_its_server(tmp_path: Path) -> None:
    check_kill_ends_the_server(tmp_path, 30, "penstock")


def test_a_server_that_outlives_the_demo_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(TooLate):
        check_kill_ends_the_server(tmp_path, 1, "tests.cli.sabotaged_demo", "orphan")


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("server", r"the phone lacks 1 of [\d,]+ orders, order 60 first; the page lacks .*; the app .*; the game "),
        ("position", r"the page lacks 50 of 51 orders, order 2 first"),
        ("twice", r"the app has 1 orders twice"),
        pytest.param("push", r"the phone lacks 1 of [\d,]+ orders, order 7 first", marks=pytest.mark.long),
    ],
)
def test_the_demo_finds_what_is_missing_or_there_twice(tmp_path: Path, what: str, found: str) -> None:
    with started(tmp_path, "tests.cli.sabotaged_demo", what, "demo", "--fast", "--no-wait") as demo:
        assert demo.wait() == 1, demo.said
    assert re.search(rf"^penstock: demo_failed: {found}", demo.said, re.MULTILINE), demo.said
    assert "verdict" not in demo.said
    assert demo.left_behind() == []


def test_a_folder_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")

    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--data", str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "is not empty — Name a new folder." in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
