from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import suite
from penstock.cli.app import run
from penstock.testing import wait_until


@pytest.mark.parametrize(
    ("arguments", "names", "rest"),
    [
        ([], [], []),
        (["fast", "faults"], ["fast", "faults"], []),
        (["check", "fast", "-k", "fast"], ["check", "fast"], ["-k", "fast"]),
        (["tests/test_config.py", "fast"], [], ["tests/test_config.py", "fast"]),
    ],
)
def test_leading_names_are_groups_and_the_rest_is_for_pytest(
    arguments: list[str], names: list[str], rest: list[str]
) -> None:
    assert suite.split(arguments) == (names, rest)


def test_a_group_is_there_when_its_directory_or_its_marker_is(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "test_disk.py").touch()
    (tmp_path / "test_other.py").write_text("@pytest.mark.cluster\ndef test(): ...")
    (tmp_path / "browser").mkdir()

    found = {group.name for group in suite.GROUPS if suite.has_tests(group, tmp_path)}

    assert found == {"fast", "faults", "cluster"}


def start_suite(tests: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "test", *arguments, "--", "-p", "tests.conftest", str(tests)]
    environment = {**os.environ, "PYTHONPATH": str(suite.ROOT), "PENSTOCK_NO_SYSTEM": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def run_suite(tests: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    started = start_suite(tests, *arguments)
    output, errors = started.communicate()
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


def test_one_failure_fails_the_run_and_keeps_the_servers_log(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(tmp_path):\n"
        "    (tmp_path / 'data.log').write_text('what the server said')\n"
        "    raise AssertionError\n"
        "def test_skipped(): pytest.skip('no such program')\n"
        "@pytest.mark.long\n"
        "def test_too_long(): raise AssertionError\n"
        "@pytest.mark.faults\n"
        "def test_of_another_group(): raise AssertionError\n"
    )

    done = run_suite(tmp_path, "fast")

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed, 1 skipped"
    assert "what the server said" in done.stdout
    assert "no such program" in done.stdout
    assert "--hypothesis-seed=" in done.stdout


def test_a_run_without_failures_passes_and_leaves_out_empty_groups(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text("def test_good(): pass\n")

    done = run_suite(tmp_path, "fast", "faults")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:-1]] == ["fast"]


def test_tests_that_cannot_be_collected_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text("import nothing_of_that_name\n")

    assert run_suite(tmp_path, "fast").returncode == 1


def test_an_unknown_marker_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text("import pytest\n@pytest.mark.fsat\ndef test_good(): pass\n")

    assert run_suite(tmp_path, "fast").returncode == 1


@pytest.mark.parametrize("arguments", [["nosuchgroup"], ["fast", "falts"]])
def test_a_mistyped_group_is_refused_with_the_known_ones(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["test", *arguments]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""  # no group has begun
    assert shown.err.startswith(f"penstock: not_found: no group or file of tests '{arguments[-1]}' — Groups are check")
    assert "faults" in shown.err


@pytest.mark.faults
@pytest.mark.parametrize("group", ["fast", "faults"])  # of two processes, and of one
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_run_that_is_ended_clears_up_what_its_tests_have_started(tmp_path: Path, group: str, sent: str) -> None:
    (tmp_path / "test_planted.py").write_text(
        "import pytest, subprocess, sys, pathlib\n"
        "here = pathlib.Path(__file__).parent\n"
        "@pytest.fixture\n"
        "def server():\n"
        "    process = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    (here / 'pid').write_text(str(process.pid))\n"
        "    yield process\n"
        "    process.kill()\n"
        f"@pytest.mark.{group}\n"
        "def test_that_hangs(server): server.wait()\n"
    )
    started = start_suite(tmp_path, group)
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))

    if sent == "SIGINT":
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    else:
        started.send_signal(signal.SIGTERM)

    started.communicate(timeout=120)
    assert started.returncode not in (0, 1)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
