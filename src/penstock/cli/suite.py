"""`./penstock test`: lint and types, then the tests, one group after the other.

A test belongs to the group whose directory it lives in (`tests/faults/` …) or whose marker it
carries; everything else is `fast`. tests/conftest.py sorts them with the table of this file.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from penstock.cli import debian
from penstock.errors import NotFound

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
NO_TESTS = 5  # pytest's exit code
PATIENCE = 3  # budgets after which a group is ended: something hangs
CLEARING_SECONDS = 60  # for a group that is ended to stop its servers


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run together, with a budget for two slow cores."""

    name: str
    minutes: int
    programs: tuple[tuple[str, str], ...] = ()  # a program it needs, and its Debian package
    processes: int = 1  # 2 where no test needs the machine for itself


GROUPS = (
    Group("fast", 2, processes=2),
    Group("doors", 6, processes=2),
    Group("bystander", 4),
    Group("faults", 6, (("strace", "strace"), ("nginx", "nginx"))),
    Group("cluster", 4),
    Group("spark", 8, (("java", "openjdk-17-jre-headless"),)),
    Group("browser", 3, (("chromium", "chromium"), ("firefox-esr", "firefox-esr"))),
)
BY_NAME = {group.name: group for group in GROUPS}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a group went."""

    name: str
    seconds: float
    budget: float
    passed: int
    failed: int
    skipped: int


def run(arguments: Sequence[str], *, only_fast: bool = False, long: bool = False) -> int:
    """Run the groups named first in *arguments*, all by default; the rest goes to pytest."""
    names, rest = split(arguments)
    _check_rest(rest)
    if only_fast:
        names = names or ["check", "fast"]
    outcomes = []
    if not names or "check" in names:
        outcomes.append(_check())
    for group in GROUPS:
        if (not names or group.name in names) and has_tests(group, TESTS):
            outcomes += _run_group(group, [*rest, *(["--long"] if long else [])])
    _print_table(outcomes)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of groups that *arguments* begin with, and what follows them."""
    count = 0
    while count < len(arguments) and (arguments[count] in BY_NAME or arguments[count] == "check"):
        count += 1
    return list(arguments[:count]), list(arguments[count:])


def _check_rest(rest: Sequence[str]) -> None:
    """Refuse a mistyped group: pytest would take it for a file, after the groups that nobody asked for."""
    if rest and not rest[0].startswith("-") and not (ROOT / rest[0].partition("::")[0]).exists():
        raise NotFound(
            "group or file of tests", rest[0], remedy=f"Groups are check, {', '.join(BY_NAME)}; files are under tests/."
        )


def has_tests(group: Group, tests: Path) -> bool:
    """Whether some file under *tests* is in the group's directory or names its marker."""
    if group.name == "fast" or any((tests / group.name).rglob("test_*.py")):
        return True
    return any(f"mark.{group.name}" in file.read_text() for file in tests.rglob("test_*.py"))


def _check() -> Outcome:
    """Lint and types: each command counts as one test."""
    python = [sys.executable, "-m"]
    commands = (
        [*python, "ruff", "check", "--quiet", "."],
        [*python, "ruff", "format", "--check", "--quiet", "."],
        [*python, "mypy"],
    )
    begun, failed = time.monotonic(), 0
    _headline("check", 1)
    for command in commands:
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            print(f"failed: {' '.join(command[2:])}", flush=True)
            failed += 1
    return Outcome("check", time.monotonic() - begun, 60, len(commands) - failed, failed, 0)


def _run_group(group: Group, arguments: Sequence[str]) -> list[Outcome]:
    """What became of *group*; nothing when no test of it was selected."""
    _headline(group.name, group.minutes)
    _see_to_programs(group)
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}: ./penstock test {group.name} --hypothesis-seed={seed}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        chosen = [] if any(a.startswith("--hypothesis-seed") for a in arguments) else [f"--hypothesis-seed={seed}"]
        pytest = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--group", group.name]
        spread = ["-n", str(group.processes), "--dist", "loadfile"] if group.processes > 1 else []
        command = [*pytest, f"--junitxml={report}", *spread, *chosen, *arguments]
        code = _run_within(command, PATIENCE * 60 * group.minutes)
        counts = count(report)
    if code == NO_TESTS:
        return []
    passed, failed, skipped = counts
    if code and not failed:
        failed = 1  # it ended before it could report
    return [Outcome(group.name, time.monotonic() - begun, 60 * group.minutes, passed, failed, skipped)]


def _run_within(command: Sequence[str], seconds: float) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with subprocess.Popen(command, cwd=ROOT) as tests:
        try:
            return tests.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f"ended after {seconds:.0f} s: something hangs", flush=True)
            _interrupt(tests)
            return 1
        except SystemExit:
            _interrupt(tests)
            raise
        except KeyboardInterrupt:  # the terminal has told pytest, too
            _see_off(tests)
            raise


def _interrupt(tests: subprocess.Popen[bytes]) -> None:
    tests.send_signal(signal.SIGINT)
    _see_off(tests)


def _see_off(tests: subprocess.Popen[bytes]) -> None:
    """Let pytest end the servers that it has started, but not for ever."""
    try:
        tests.wait(CLEARING_SECONDS)
    except subprocess.TimeoutExpired:
        tests.kill()


def count(report: Path) -> tuple[int, int, int]:
    """Tests passed, failed and skipped, from pytest's XML report; zeros when there is none."""
    if not report.exists():
        return 0, 0, 0
    suites = ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314 (our own file)
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return max(total - failed - skipped, 0), failed, skipped


def _see_to_programs(group: Group) -> None:
    from penstock.testing.programs import find_program

    missing = [package for program, package in group.programs if not find_program(program)]
    if not missing:
        return
    if reason := debian.why_not():
        print(f"missing: {' '.join(missing)} ({reason}); run: apt-get install {' '.join(missing)}", flush=True)
    else:
        debian.install(missing)


def _headline(name: str, minutes: int) -> None:
    print(f"\n── {name}, budget {minutes} min ──", flush=True)


def _print_table(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'group':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'took':>9}{'budget':>9}")
    for one in outcomes:
        late = "  over" if one.seconds > one.budget else ""
        print(
            f"{one.name:<10}{one.passed:>8}{one.failed:>8}{one.skipped:>9}"
            f"{one.seconds:>7.1f} s{one.budget:>7.0f} s{late}"
        )
    passed, failed = sum(one.passed for one in outcomes), sum(one.failed for one in outcomes)
    print(f"{passed} passed, {failed} failed, {sum(one.skipped for one in outcomes)} skipped", flush=True)
