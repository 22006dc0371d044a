"""Every line of every stream is applied exactly once and in order, whatever fails: app, database, pusher, server."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import RunningServer, start_server, wait_until
from tests.api.client import ask
from tests.client.databases import postgres
from tests.doors.eventhorizon_client import call, create, subscribe
from tests.faults.eventhorizon_app import connect, make_table

ROOT = Path(__file__).parents[2]
SUB = "/_sub/faults"
STREAMS = [f"/faults/{number:02}" for number in range(20)]
LINES = 60  # of each
FAULTS = ("app", "pusher", "server", "database", "app", "pusher")  # what is ended, in an order by seed
LONG_LINES, LONG_FAULTS = 500, 24  # with --long; each fault by chance


class Kept:
    """A process that is started again whenever it ends, until it is told to stay down."""

    def __init__(self, make: Any) -> None:
        self._make, self._stopped = make, threading.Event()
        self.starts = 0
        self.process: subprocess.Popen[bytes] = self._start()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self._stopped.set()
        while self._thread.is_alive():  # which may have been starting one more
            self.process.kill()
            self._thread.join(0.05)
        self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        process: subprocess.Popen[bytes] = self._make(self.starts)
        return process

    def _watch(self) -> None:
        while True:
            self.process.wait()
            if self._stopped.is_set():
                return
            self.process = self._start()


def free_port() -> int:
    """A port that stays free while its app is down: not one that the kernel gives to outgoing connections."""
    for port in random.sample(range(10_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port among a hundred")


@contextmanager
def kept(make: Any) -> Iterator[Kept]:
    process = Kept(make)
    try:
        yield process
    finally:
        process.close()


class Trial:
    """One run by one seed."""

    lines, faults = LINES, FAULTS

    def __init__(self, folder: Path, server: RunningServer, database: str, seed: int, *, apart: bool) -> None:
        self.folder, self.server, self.database, self.seed, self.apart = folder, server, database, seed, apart
        self.chance = random.Random(seed)
        self.port = free_port()
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        self.ends: dict[str, str] = {}
        self.before = 0  # lines that were applied when the last fault was over
        self.graves = folder / "graves"
        self.graves.mkdir()

    def app(self, start: int) -> subprocess.Popen[bytes]:
        command = ["-m", "tests.faults.eventhorizon_app", "--database", self.database, "--subscription", SUB]
        command += ["--port", str(self.port), "--seed", str(self.seed * 1000 + start)]
        command += ["--graves", str(self.graves)]  # it dies at the worst point three times for certain
        return self._run([*command, *(["--apart"] if self.apart else [])], "app.log")

    def pusher(self, start: int) -> subprocess.Popen[bytes]:
        command = ["-m", "penstock", "pusher", f"http://127.0.0.1:{self.port}/", "--server", self.server.url]
        command += ["--token", self.server.admin_token, "--timeout", "0.5", "--repeat", "0.3"]
        command += ["--retry", "0.05", "--retry-longest", "0.2"]  # the app is often down for longer than it works
        return self._run(command, "pusher.log")

    def _run(self, arguments: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen([sys.executable, *arguments], env=self.environment, stdout=out, stderr=out)

    def append_all(self, mischief: Any) -> None:
        """Append to the streams in turn, in batches of random length; do each *mischief* after a share of them."""
        batches = list(self._batches())
        share = len(batches) // (len(self.faults) + 1)
        faults = self.chance.sample(self.faults, len(self.faults))
        for number, (stream, numbers) in enumerate(batches, 1):
            self._append(stream, [f"{stream} {line}" for line in numbers])
            if number % share == 0 and faults:
                mischief(faults.pop())

    def _batches(self) -> Iterator[tuple[str, range]]:
        left = dict.fromkeys(STREAMS, 0)
        while left:
            stream = self.chance.choice(sorted(left))
            first, end = left[stream], min(self.lines, left[stream] + self.chance.randint(1, 25))
            yield stream, range(first, end)
            left[stream] = end
            if end == self.lines:
                del left[stream]

    def _append(self, stream: str, lines: list[str]) -> None:
        """Append once: the expected position tells whether an attempt without an answer was stored."""
        expected = self.ends.get(stream) or self._end(stream)

        def appended() -> str:
            try:
                reply = call(self.server, "/writer/append", Stream=stream, Lines=lines, ExpectedOffset=expected)
            except OSError:
                return ""
            if reply.status == 201:
                return str(reply.json["Offset"])
            return self._end(stream) if reply.status == 409 else ""

        self.ends[stream] = wait_until(appended)

    def _end(self, stream: str) -> str:
        [shown] = ask(self.server, "GET", "/v1/streams", pattern=stream).json["streams"]
        return str(shown["cursor"])

    def applied(self) -> dict[str, list[str]]:
        connection = connect(self.database)
        cursor = connection.cursor()
        cursor.execute("SELECT stream, content FROM applied ORDER BY number")
        found: dict[str, list[str]] = {stream: [] for stream in STREAMS}
        for stream, content in cursor.fetchall():
            found[stream].append(content)
        connection.close()
        return found

    def count(self) -> int:
        connection = connect(self.database)
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM applied")
        number: int = cursor.fetchone()[0]
        connection.close()
        return number


def wanted(lines: int = LINES) -> dict[str, list[str]]:
    return {stream: [f"{stream} {number}" for number in range(lines)] for stream in STREAMS}


def run(trial: Trial, database: Any = None) -> dict[str, list[str]]:
    """Let everything go wrong while lines are appended; then wait until as many as there are were applied."""
    print(f"seed {trial.seed}")  # noqa: T201 - pytest shows it when the test fails
    make_table(trial.database)
    create(trial.server, SUB, "/faults", *STREAMS)
    for stream in STREAMS:
        subscribe(trial.server, stream, SUB)
    with kept(trial.app) as app, kept(trial.pusher) as pusher:

        def mischief(fault: str) -> None:
            wait_until(lambda: trial.count() > trial.before)  # else it might end what has not begun yet
            if fault == "app":
                app.kill()
            elif fault == "pusher":
                pusher.kill()
            elif fault == "server":
                trial.server.kill()
                trial.server.restart()
            elif database is not None:
                database.stop(signal.SIGQUIT)
                database.start()
            trial.before = trial.count()

        trial.append_all(mischief)
        wait_until(lambda: trial.count() >= len(STREAMS) * trial.lines, within=60)
        assert len(list(trial.graves.iterdir())) == 3
        assert pusher.starts > 1
        return trial.applied()


@pytest.mark.parametrize("seed", [random.randrange(10**6)], ids=["random"])  # every process must find the same names
def test_each_line_is_applied_exactly_once_and_in_order(tmp_path: Path, seed: int) -> None:
    with start_server(tmp_path / "data", eventhorizon_activity_interval=0.2) as server:
        trial = Trial(tmp_path, server, str(tmp_path / "app.db"), seed, apart=False)

        assert run(trial) == wanted()


def test_also_when_the_database_is_a_postgres_that_crashes(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    with postgres() as database, start_server(tmp_path / "data", eventhorizon_activity_interval=0.2) as server:
        trial = Trial(tmp_path, server, database.target, seed, apart=False)

        assert run(trial, database) == wanted()


@pytest.mark.long
@pytest.mark.limit(900)
def test_ten_thousand_lines_are_applied_exactly_once_and_in_order(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    with postgres() as database, start_server(tmp_path / "data", eventhorizon_activity_interval=0.2) as server:
        trial = Trial(tmp_path, server, database.target, seed, apart=False)
        trial.lines, trial.faults = LONG_LINES, tuple(random.Random(seed).choices(FAULTS, k=LONG_FAULTS))

        applied = run(trial, database)
        print(f"{sum(map(len, applied.values())):,} lines, ended: {Counter(trial.faults)}")  # noqa: T201 - the count
        assert applied == wanted(LONG_LINES)


def test_an_app_that_commits_position_and_data_apart_is_found_out(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", eventhorizon_activity_interval=0.2) as server:
        trial = Trial(tmp_path, server, str(tmp_path / "app.db"), 4711, apart=True)

        assert run(trial) != wanted()
