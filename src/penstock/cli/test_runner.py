"""`./penstock test`: lint and types, then the tests, two groups at a time.

A test belongs to the group whose marker it carries, whose directory it lives in (`tests/faults/` …) or whose `places`
name its file; everything else is `fast`. tests/conftest.py sorts them with the table of this file.

Everything ends: a test has its limit (tests/limits.py), and a group that takes several times its budget is ended. The
tests run in a process below pytest's, so that one which hangs can be ended and the next still runs.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from penstock import debian
from penstock.cli.processes import STACKS, VARIABLE, count_orphans, end_marked, new_mark, with_mark, write_stacks
from penstock.errors import NotFound
from penstock.testing.waiting import TooLate, wait_until

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
NO_TESTS = 5  # pytest's exit code
LANES = 2  # groups that run at the same time. With three, all took 12 minutes and not 14, but each its budget and more
PATIENCE = 10  # budgets after which a group is ended: something hangs. A busy machine takes three of them
LONG_PATIENCE = 60  # the same with its long tests
CLEARING_SECONDS = 60  # for a group that is ended to stop its servers
BYTECODE = ROOT / ".pytest_cache" / "bytecode"  # where Python may not keep it beside the source


@dataclass(frozen=True, slots=True)
class TestGroup:
    """Tests that run together, with a budget for two slow cores."""

    name: str
    minutes: int
    programs: tuple[tuple[str, str], ...] = ()  # a program it needs, and its Debian package
    processes: int = 1  # when it runs alone or begins last: 2 where no test needs the machine for itself
    places: tuple[str, ...] = ()  # files and directories under tests/ besides the one of its name


GROUPS = (
    TestGroup("fast", 2, processes=2),
    TestGroup("doors", 6, processes=2, places=("cli/test_lake.py", "client/test_receiver.py")),
    TestGroup("bystander", 4),
    TestGroup(
        "lake",
        3,
        processes=2,
        places=(
            "api/test_erasing.py",
            "api/test_export.py",
            "api/test_export_ends.py",
            "api/test_export_http.py",
            "api/test_iceberg.py",
            "api/test_retention.py",
            "cli/test_typed_tables.py",
            "engines/test_deliveries.py",
            "engines/test_lake.py",
            "iceberg",
            "pipeline",
        ),
    ),
    TestGroup(
        "faults",
        6,
        (("strace", "strace"), ("nginx", "nginx")),
        places=(
            "engines/test_lake_on_s3.py",
            "pipeline/test_cut_off_jobs.py",
            "pipeline/test_killed_jobs.py",
            "pipeline/test_two_drivers.py",
        ),
    ),
    TestGroup("cluster", 4),
    TestGroup("spark", 8, (("java", "openjdk-17-jre-headless"),)),
    TestGroup("browser", 3, (("chromium", "chromium"), ("firefox-esr", "firefox-esr"))),
)
BY_NAME = {group.name: group for group in GROUPS}


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """How a group went."""

    name: str
    seconds: float
    cpu: float  # seconds of it and of all processes below it that have ended
    budget: float
    passed: int
    failed: int
    skipped: int


def run_often(arguments: Sequence[str], times: int, beside: int, *, only_fast: bool = False, long: bool = False) -> int:
    """Run as `run` does, *times* in a row until one fails, with *beside* processes that keep a core busy each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(beside)]
    try:
        for number in range(1, times + 1):
            if code := run(arguments, only_fast=only_fast, long=long):
                print(f"run {number} of {times} failed", file=sys.stderr)
                return code
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return 0


def run(arguments: Sequence[str], *, only_fast: bool = False, long: bool = False) -> int:
    """Run the groups named first in *arguments*, all by default; the rest goes to pytest."""
    names, rest = split(arguments)
    _check_rest(rest)
    if only_fast:
        names = names or ["check", "fast"]
    outcomes = []
    if not names or "check" in names:
        outcomes.append(_check())
    groups = [group for group in GROUPS if (not names or group.name in names) and has_tests(group, TESTS)]
    outcomes += run_groups(groups, [*rest, *(["--long"] if long else [])])
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


def has_tests(group: TestGroup, tests: Path) -> bool:
    """Whether some file under *tests* is in one of the group's places or names its marker."""
    if group.name == "fast" or any((tests / group.name).rglob("test_*.py")):
        return True
    if any((tests / place).exists() for place in group.places):
        return True
    return any(f"mark.{group.name}" in file.read_text() for file in tests.rglob("test_*.py"))


def _check() -> GroupOutcome:
    """Lint and types: each command counts as one test."""
    python = [sys.executable, "-m"]
    commands = (
        [*python, "ruff", "check", "--quiet", "."],
        [*python, "ruff", "format", "--check", "--quiet", "."],
        [*python, "mypy"],
    )
    begun, used, failed = time.monotonic(), _cpu_of_children(), 0
    print("\n── check, budget 1 min ──", flush=True)
    for command in commands:
        if _run_within(command, 60 * PATIENCE):
            print(f"failed: {' '.join(command[2:])}", flush=True)
            failed += 1
    seconds, cpu = time.monotonic() - begun, _cpu_of_children() - used
    return GroupOutcome("check", seconds, cpu, 60, len(commands) - failed, failed, 0)


def _run_within(command: Sequence[str], seconds: float) -> int:
    """Run *command* in the project's folder; its status, or 1 when it was ended for taking too long."""
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"{command[2]} was ended after {seconds:.0f} s: something hangs", flush=True)
        return 1


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_groups(groups: Sequence[TestGroup], arguments: Sequence[str]) -> list[GroupOutcome]:
    """Run *groups*, as many at a time as there are lanes, the longest first; what became of each that has tests."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job ignores Ctrl-C, and so would all that it starts; tests end programs by it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    lanes = LANES if len(groups) > 1 else 1
    waiting = sorted(groups, key=lambda group: group.minutes, reverse=True)
    running: list[Running] = []
    outcomes: list[GroupOutcome] = []
    try:
        while waiting or running:
            while waiting and len(running) < lanes:
                group = waiting.pop(0)
                processes = 1 if waiting else group.processes  # the last one has the others' cores before long
                running.append(Running(group, arguments, processes, alone=len(groups) == 1))
            for one in [one for one in running if one.is_over()]:
                running.remove(one)
                outcomes += one.finish()
            time.sleep(0.05)
    finally:  # with some still running when the command is ended
        for one in running:
            one.interrupt()
        for one in running:
            one.end()
    return sorted(outcomes, key=lambda outcome: list(BY_NAME).index(outcome.name))


def compiled_once(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the tests: Python keeps its bytecode, away from the source where it may keep none there.

    The tests start hundreds of servers. One that compiles all it imports takes half as much CPU again to be ready.
    """
    kept = dict(environment)
    if kept.pop("PYTHONDONTWRITEBYTECODE", ""):
        kept["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
    return kept


class Running:
    """A group whose tests run. Beside others it is quiet until it is over: its output comes in one piece."""

    def __init__(self, group: TestGroup, arguments: Sequence[str], processes: int, *, alone: bool) -> None:
        self._group, self._begun, self._cpu, self._mark = group, time.monotonic(), 0.0, new_mark()
        self._folder = tempfile.TemporaryDirectory()
        self._report = Path(self._folder.name, "report.xml")
        self._output = None if alone else Path(self._folder.name, "output").open("wb")  # noqa: SIM115 (for its life)
        self._seconds = 60 * group.minutes * (LONG_PATIENCE if "--long" in arguments else PATIENCE)
        self._ended, self._stacks = False, list[Path]()
        _install_programs(group)
        seed = secrets.randbelow(2**32)
        self._headline = (
            f"\n── {group.name}, budget {group.minutes} min ──\n"
            f"seed {seed}: ./penstock test {group.name} --hypothesis-seed={seed}"
        )
        print(self._headline if alone else f"{group.name} begins", flush=True)
        chosen = [] if any(a.startswith("--hypothesis-seed") for a in arguments) else [f"--hypothesis-seed={seed}"]
        self._tests = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--group", group.name,
                f"--junitxml={self._report}", "-n", str(processes), "--dist", "loadfile",
                "--max-worker-restart=1000",  # one for each test that is ended (tests/limits.py)
                *chosen, *arguments,
            ],
            cwd=ROOT, env={**compiled_once(os.environ), VARIABLE: with_mark(self._mark), STACKS: self._folder.name},
            stdout=self._output, stderr=self._output, preexec_fn=count_orphans,
        )  # fmt: skip

    def is_over(self) -> bool:
        """Whether it has ended; ends it if it takes too long."""
        if self._has_ended():
            return True
        if time.monotonic() - self._begun < self._seconds:
            return False
        self._ended = True
        self._stacks = write_stacks(self._mark, Path(self._folder.name))
        self.interrupt()
        self.end()
        return True

    def _has_ended(self) -> bool:
        if self._tests.returncode is None:
            pid, status, used = os.wait4(self._tests.pid, os.WNOHANG)
            if pid:
                self._tests.returncode = os.waitstatus_to_exitcode(status)
                self._cpu = used.ru_utime + used.ru_stime
        return self._tests.returncode is not None

    def interrupt(self) -> None:
        """Have pytest end, as Ctrl-C does; the terminal may have told it already."""
        if not self._has_ended():
            self._tests.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Let pytest end what its tests have started, but not for ever; then end what is left."""
        with suppress(TooLate):
            wait_until(self._has_ended, within=CLEARING_SECONDS)
        end_marked(self._mark)
        wait_until(self._has_ended)

    def finish(self) -> list[GroupOutcome]:
        """Show what was said, and what became of it; nothing when no test was selected."""
        left = end_marked(self._mark)
        if self._output is not None and self._tests.returncode != NO_TESTS:
            self._output.close()
            print(self._headline, flush=True)
            sys.stdout.write(Path(self._output.name).read_text(errors="replace"))
        for process in left:
            print(f"left behind by {self._group.name}, and ended: {process}")
        if self._ended:
            print(f"{self._group.name} was ended after {self._seconds:.0f} s: something hangs", flush=True)
        for one in self._stacks:
            print(f"where process {one.stem} was:\n{one.read_text(errors='replace')}", flush=True)
        passed, failed, skipped = count(self._report)
        self._folder.cleanup()
        if self._tests.returncode == NO_TESTS and not self._ended:
            return []
        if (self._tests.returncode or self._ended) and not failed:
            failed = 1  # it ended before it could report
        seconds = time.monotonic() - self._begun
        return [GroupOutcome(self._group.name, seconds, self._cpu, 60 * self._group.minutes, passed, failed, skipped)]


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


def _install_programs(group: TestGroup) -> None:
    from penstock.testing.programs import find_program

    missing = [package for program, package in group.programs if not find_program(program)]
    if not missing:
        return
    if reason := debian.why_not():
        print(f"missing: {' '.join(missing)} ({reason}); run: apt-get install {' '.join(missing)}", flush=True)
    else:
        debian.install(missing)


def _print_table(outcomes: Sequence[GroupOutcome]) -> None:
    print(f"\n{'group':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'cpu':>9}{'took':>9}{'budget':>9}")
    for one in outcomes:
        late = "  over" if one.seconds > one.budget else ""
        print(
            f"{one.name:<10}{one.passed:>8}{one.failed:>8}{one.skipped:>9}"
            f"{one.cpu:>7.1f} s{one.seconds:>7.1f} s{one.budget:>7.0f} s{late}"
        )
    passed, failed = sum(one.passed for one in outcomes), sum(one.failed for one in outcomes)
    print(f"{passed} passed, {failed} failed, {sum(one.skipped for one in outcomes)} skipped", flush=True)
