"""Sorts tests into groups, starts servers for them, and keeps a failed one's server log and seed."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from hypothesis import settings

from penstock.cli.processes import STACKS, stacks_file
from penstock.cli.test_runner import BY_NAME, TESTS
from penstock.testing import RunningServer, S3Server, start_s3, start_server
from tests.forked_servers import forking, start_forked
from tests.limits import LOG_TAIL, Ending, Limits

# Times vary on two shared cores, so no deadline per example; a failure prints how to repeat it.
settings.register_profile("penstock", deadline=None, print_blob=True, derandomize=False)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--group", choices=sorted(BY_NAME), help="only the tests of this group")
    parser.addoption("--long", action="store_true", help="the tests marked long, too")
    parser.addoption("--limit", type=float, metavar="SECONDS", help="for each test, whatever its marker says; 0: none")


def pytest_configure(config: pytest.Config) -> None:
    RunningServer._run = start_forked  # type: ignore[method-assign]
    if folder := os.environ.get(STACKS):  # of a group: one that is ended shows where its processes were
        faulthandler.register(signal.SIGUSR1, file=stacks_file(folder, os.getpid()).open("w"))
    config.pluginmanager.register(Limits(config), "penstock limits")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ending(config), "penstock ending")


def pytest_unconfigure() -> None:
    forking.end()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the directories of other groups, and files without a test of this one.

    Importing them takes longer than most groups' quickest tests, and may need what is not installed.
    """
    wanted = config.getoption("--group")
    if not wanted:
        return None
    if (home := directory_group(collection_path)) is not None:
        return None if home == wanted or has_a_place_in(collection_path, wanted) else True
    return True if collection_path.is_file() and not may_have_tests_of(wanted, collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted, long = config.getoption("--group"), config.getoption("--long")
    kept, dropped = [], []
    for item in items:
        group = next((name for name in BY_NAME if item.get_closest_marker(name)), None)
        if group is None:
            group = directory_group(item.path) or "fast"
            item.add_marker(group)
        other = (wanted and group != wanted) or (not long and item.get_closest_marker("long"))
        (dropped if other else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish() -> None:
    """All that was imported stays: Python need not look through it again and again for what could go."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


def may_have_tests_of(group: str, file: Path) -> bool:
    """Whether *file* or the conftest.py beside it names the group's marker; any file may have fast tests."""
    named = (one.read_text() for one in (file, file.with_name("conftest.py")) if one.suffix == ".py" and one.exists())
    return group == "fast" or any(f"mark.{group}" in text for text in named)


def directory_group(path: Path) -> str | None:
    """The group whose directory, or one of whose other places, *path* is in, if any."""
    if not path.is_relative_to(TESTS) or path == TESTS:
        return None
    inside = path.relative_to(TESTS)
    if inside.parts[0] in BY_NAME:
        return inside.parts[0]
    placed = [
        (len(place), name) for name, group in BY_NAME.items() for place in group.places if inside.is_relative_to(place)
    ]
    return max(placed)[1] if placed else None  # a file goes before its directory


def has_a_place_in(path: Path, group: str) -> bool:
    """Whether some of the group's tests are in a directory that is otherwise another group's."""
    return any((TESTS / place).is_relative_to(path) for place in BY_NAME[group].places)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections += [
            (f"log of {log.name}", log.read_text(errors="replace")[-LOG_TAIL:]) for log in logs_of(item)
        ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests that passed have counted: inputs that were made, and how long bystanders waited."""
    said = [line for report in terminalreporter.getreports("passed") for line in report.capstdout.splitlines()]
    for line in said:
        if line.startswith("generated: "):
            terminalreporter.write_line(line)
    waits = [float(found[1]) for line in said if (found := re.match(r"bystander: .* wall_ms=([\d.]+)", line))]
    if waits:
        longest, usual = max(waits), median(waits)
        terminalreporter.write_line(f"bystanders: {len(waits)}, longest wait {longest:.0f} ms, median {usual:.0f} ms")


def logs_of(item: pytest.Item) -> list[Path]:
    """Logs of the servers that the test used: its fixtures', and those it started in tmp_path."""
    used = getattr(item, "funcargs", {}).values()
    servers = [value.log for value in used if isinstance(value, RunningServer)]
    folders = [value for value in used if isinstance(value, Path) and value.is_dir()]
    found = {*servers, *(log for folder in folders for log in folder.glob("*.log"))}
    return sorted(log for log in found if log.exists())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of the test's own, on an empty data directory."""
    with start_server(tmp_path / "data") as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for all tests that do not disturb each other: use streams of your own."""
    with start_server(tmp_path_factory.mktemp("shared") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def shared_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One object store for all tests: use a prefix of your own."""
    with start_s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def s3(shared_s3: S3Server) -> Iterator[S3Server]:
    """The store, in the environment as its users have it. It answers before the test and after it."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in shared_s3.environment.items():
            environment.setenv(name, value)
        yield shared_s3
    shared_s3.resume()
    if shared_s3.process.poll() is not None:
        shared_s3.restart()
