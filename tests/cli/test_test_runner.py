from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.cli import test_runner
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
    assert test_runner.split(arguments) == (names, rest)


def test_a_group_is_there_when_its_directory_or_its_marker_is(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "test_disk.py").touch()
    (tmp_path / "test_other.py").write_text("@pytest.mark.cluster\ndef test(): ...")
    (tmp_path / "browser").mkdir()

    found = {group.name for group in test_runner.GROUPS if test_runner.has_tests(group, tmp_path)}

    assert found == {"fast", "faults", "cluster"}


def test_bytecode_is_kept_away_from_the_source_where_none_may_be_kept_beside_it() -> None:
    free = {"PATH": "/bin", "PYTHONPYCACHEPREFIX": "/mine"}

    assert test_runner.compiled_once(free) == free
    assert test_runner.compiled_once({"PATH": "/bin", "PYTHONDONTWRITEBYTECODE": "1"}) == {
        "PATH": "/bin",
        "PYTHONPYCACHEPREFIX": str(test_runner.BYTECODE),
    }


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(test_runner.ROOT),
    "PENSTOCK_NO_SYSTEM": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def start_suite(tests: Path, *arguments: str, options: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "test", *arguments, "--", "-p", "tests.conftest", *options, str(tests)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )


def run_suite(tests: Path, *arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    started = start_suite(tests, *arguments, options=options)
    output, errors = started.communicate()
    return subprocess.CompletedProcess(started.args, started.returncode, output, errors)


@pytest.mark.faults
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


PASSING = """
import os, pathlib, signal, subprocess, sys
from penstock.testing import wait_until
def parent(process): return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
def test_bytecode(): assert sys.pycache_prefix and not sys.dont_write_bytecode
def test_ctrl_c(): assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
def test_orphan():
    started = subprocess.run(["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, check=True)
    orphan = int(started.stdout)
    assert parent(orphan) == parent(os.getppid())  # ours is pytest, and its is the one that counts
    os.kill(orphan, signal.SIGKILL)
    wait_until(lambda: not pathlib.Path(f"/proc/{orphan}").exists())
"""


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A run of two groups, the second without tests, that was started as a shell starts what is in its background."""
    folder = tmp_path_factory.mktemp("passing")
    (folder / "test_planted.py").write_text(PASSING)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return run_suite(folder, "fast", "faults")
    finally:
        signal.signal(signal.SIGINT, before)


def row_of(group: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """A row of the table at the end: passed, failed, skipped, and so on."""
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines() if line.startswith(f"{group}  ")]
    return rows[0][1:] if rows else []


@pytest.mark.faults
def test_a_run_without_failures_passes_and_leaves_out_empty_groups(passing: subprocess.CompletedProcess[str]) -> None:
    assert passing.returncode == 0, passing.stdout
    assert passing.stdout.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"
    assert row_of("fast", passing)[:3] == ["3", "0", "0"]
    assert row_of("faults", passing) == []


@pytest.mark.faults
def test_programs_can_be_ended_by_ctrl_c_in_a_run_in_the_background(passing: subprocess.CompletedProcess[str]) -> None:
    """A shell starts what runs in its background with Ctrl-C ignored, which all inherit that it starts."""
    assert "test_ctrl_c" not in passing.stdout  # it would be among the failed


@pytest.mark.faults
def test_orphans_of_tests_are_counted_with_their_group(passing: subprocess.CompletedProcess[str]) -> None:
    assert "test_orphan" not in passing.stdout  # the same; tests/cli/test_processes.py has how
    assert float(row_of("fast", passing)[3].removesuffix(" s")) > 0.1


@pytest.mark.faults
def test_tests_that_cannot_be_collected_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_import.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "test_marker.py").write_text("import pytest\n@pytest.mark.fsat\ndef test_good(): pass\n")

    done = run_suite(tmp_path, "fast")

    assert done.returncode == 1
    assert "No module named 'nothing_of_that_name'" in done.stdout
    assert "'fsat' not found in `markers`" in done.stdout


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
@pytest.mark.parametrize(("group", "sent"), [("fast", "SIGINT"), ("faults", "SIGTERM")])  # of two processes, and of one
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


@pytest.mark.faults
def test_runs_go_on_until_one_fails_with_busy_processes_beside_them(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(
        "import pathlib\n"
        "def test_fails_at_the_second_run():\n"
        "    runs = pathlib.Path(__file__).with_name('runs')\n"
        "    assert not runs.exists()\n"
        "    runs.touch()\n"
    )

    done = run_suite(tmp_path, "--times", "3", "--beside", "1", "fast")

    assert done.returncode == 1
    assert [line for line in done.stdout.splitlines() if line.endswith("skipped")] == [
        "1 passed, 0 failed, 0 skipped",
        "0 passed, 1 failed, 0 skipped",
    ]
    assert "run 2 of 3 failed" in done.stderr


def is_running(pid: str) -> bool:
    """Whether that process lives; a dead one is seen until somebody has asked what became of it."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


HANGS = {
    "a loop": "def test_hangs():\n    while time.time() < end: pass",
    "an await": "async def test_hangs():\n    await asyncio.sleep(end - time.time())",
    "C that holds the GIL": "def test_hangs(): ctypes.PyDLL(None).usleep(SECONDS * 1_000_000)",
    "the end of a fixture": (
        "@pytest.fixture\ndef late():\n    yield\n    time.sleep(SECONDS)\ndef test_hangs(late): pass"
    ),
}
PLANTED = """
import asyncio, ctypes, pathlib, pytest, subprocess, time
SECONDS = {seconds}
end = time.time() + SECONDS
children = []
def test_before(tmp_path):
    (tmp_path / "data.log").write_text("what the server said")
    children.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
    pathlib.Path(__file__).with_suffix(".pid").write_text(str(children[0].pid))
{hang}
def test_after(): pass
"""


def check_that_hangs_are_ended(folder: Path, limit: str, seconds: int, hangs: list[str]) -> None:
    for number, name in enumerate(hangs):
        planted = PLANTED.replace("{seconds}", str(seconds)).replace("{hang}", HANGS[name])
        (folder / f"test_planted_{number}.py").write_text(planted)

    done = run_suite(folder, "fast", options=[limit])

    passed = 2 * len(hangs) + hangs.count("the end of a fixture")  # whose test itself had passed
    assert done.stdout.splitlines()[-1] == f"{passed} passed, {len(hangs)} failed, 0 skipped", done.stdout
    assert done.returncode == 1
    for number in range(len(hangs)):
        name = f"test_planted_{number}.py"
        assert f"{name}::test_hangs took longer than its limit of 2 s and was ended" in done.stdout
        assert f'{name}", line' in done.stdout  # in the stacks, of threads or of tasks
        assert not is_running((folder / f"test_planted_{number}.pid").read_text())
    assert "what the server said" in done.stdout
    assert "--hypothesis-seed=" in done.stdout.partition("stacks when it was ended")[2]


@pytest.mark.faults
def test_a_test_that_hangs_in_anything_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    check_that_hangs_are_ended(tmp_path, "--limit=2", 600, list(HANGS))


@pytest.mark.faults
def test_the_same_check_finds_a_run_without_a_limit(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="3 passed, 0 failed"):
        check_that_hangs_are_ended(tmp_path, "--limit=0", 3, ["a loop"])


def test_what_tests_have_counted_is_shown_though_they_pass(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(
        "import pytest\n@pytest.mark.parametrize('ms', [7, 30, 8])\ndef test_good(ms):\n"
        "    print('generated: door inputs=100,000')\n    print(f'bystander: Report(loop_cpu_ms=1, wall_ms={ms}.1)')\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=100)

    assert done.stdout.splitlines().count("generated: door inputs=100,000") == 3
    assert "\nbystanders: 3, longest wait 30 ms, median 8 ms\n" in done.stdout


def test_lint_and_types_have_a_limit_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert test_runner._run_within([sys.executable, "-c", "raise SystemExit(3)"], 60) == 3
    assert test_runner._run_within(["sleep", "600", "1"], 0.1) == 1
    assert capsys.readouterr().out == "1 was ended after 0 s: something hangs\n"


BESIDE = """
import sys, time
from pathlib import Path
from penstock.cli import test_runner

class Clock:
    sleep = time.sleep

    @staticmethod
    def monotonic():
        return time.monotonic() + 500 * Path(sys.argv[1], "hangs").exists()

test_runner.time = Clock
test_runner.CLEARING_SECONDS = 1
groups = [test_runner.TestGroup("fast", 2), test_runner.TestGroup("cluster", 0.5)]
for outcome in test_runner.run_groups(groups, ["-p", "tests.conftest", sys.argv[1]]):
    print("outcome", outcome.name, outcome.passed, outcome.failed)
"""


BESIDE_ITS_END = """
import pathlib, time
hangs = pathlib.Path(__file__).with_name('hangs')
def pytest_sessionfinish(session):
    if session.config.getoption('--group') == 'cluster': hangs.touch(); time.sleep(600)
"""


@pytest.mark.faults
def test_groups_run_beside_each_other_and_one_that_hangs_outside_its_tests_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(
        "import pytest\ndef test_good(): pass\n@pytest.mark.cluster\ndef test_of_another_group(): pass\n"
    )
    (tmp_path / "conftest.py").write_text(BESIDE_ITS_END)

    command = [sys.executable, "-c", BESIDE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=100)

    assert done.stdout.splitlines()[:2] == ["fast begins", "cluster begins"]
    assert "cluster was ended after 300 s: something hangs" in done.stdout
    assert 'conftest.py", line 5 in pytest_sessionfinish' in done.stdout  # the stack of what hung
    assert "outcome fast 1 0\n" in done.stdout
    assert re.search(r"^outcome cluster \d 1$", done.stdout, re.MULTILINE)  # it may have reported before it hung
