"""kill -9 of the processes of one machine: what was acknowledged is there, and readers get everything once."""

from __future__ import annotations

import http.client
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.testing import RunningServer, TooLate, wait_until
from tests.api.client import Tail, ask, publish
from tests.cluster.test_nodes import PACE_SECONDS, Publisher, bodies

WORKERS = 2
Load = tuple[list[Publisher], list["ResumingReader"]]


class BrokenServer(RunningServer):
    module = "tests.faults.broken_machine"


@contextmanager
def started(folder: Path, sabotage: str = "") -> Iterator[RunningServer]:
    kind, environment = (BrokenServer, {"SABOTAGE": sabotage}) if sabotage else (RunningServer, {})
    server = kind(folder / "data", ("--workers", str(WORKERS)), environment)
    try:
        yield server
    finally:
        server.stop(within=30)


def pids_of(server: RunningServer, what: str) -> list[int]:
    """Processes of that kind, in the order in which they were ready."""
    return [int(pid) for pid in re.findall(rf"{what}.started.*pid=(\d+)", server.log_text())]


class ResumingReader(threading.Thread):
    """Reads a stream of its own, and goes on behind the last entry it got whenever its connection breaks."""

    def __init__(self, server: RunningServer, stream: str) -> None:
        super().__init__(daemon=True)
        self._server, self.stream = server, stream
        self.got: list[str] = []
        self.history: list[str] = []  # for who must find out what went wrong
        self.breaks = 0
        self.ending = threading.Event()

    def run(self) -> None:
        after = 0
        while not self.ending.is_set():
            self.history.append(f"opened after {after}")
            try:
                with Tail(self._server, self.stream, after=after) as tail:
                    while not self.ending.is_set():
                        entry = tail.line()
                        self.history.append(f"{entry['id']}: {entry['data']}")
                        self.got.append(entry["data"])
                        after = entry["id"]
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.history.append(repr(error))
                self.breaks += 1
                self.ending.wait(PACE_SECONDS)  # nobody listens while all processes are started again


@contextmanager
def load(server: RunningServer) -> Iterator[Load]:
    """Publishers and their readers, until the block ends."""
    publishers = [Publisher([server], f"/killed/{number}") for number in range(6)]
    readers = [ResumingReader(server, one.stream) for one in publishers]
    for one in (*readers, *publishers):
        one.start()
    try:
        yield publishers, readers
    finally:
        for one in (*readers, *publishers):
            one.ending.set()


def check_killed_workers(server: RunningServer) -> None:
    """Kill one worker after the other under load; all readers get everything, in order, each once."""
    with load(server) as (publishers, readers):
        for kill in range(WORKERS):
            wait_until_read(publishers, readers)
            os.kill(pids_of(server, "worker")[kill], signal.SIGKILL)
            wait_until(lambda kill=kill: len(pids_of(server, "worker")) == WORKERS + kill + 1, within=60)
        check_all_was_read(server, publishers, readers)
        assert sum(reader.breaks for reader in readers) >= len(readers)


def check_killed_log(server: RunningServer) -> None:
    """Kill the process that keeps the log, twice; everything starts again, with all that was acknowledged, for all."""
    with load(server) as (publishers, readers):
        for kill in range(2):
            wait_until_read(publishers, readers)
            os.kill(pids_of(server, "log_process")[kill], signal.SIGKILL)
            wait_until(lambda kill=kill: len(pids_of(server, "worker")) >= WORKERS * (kill + 2), within=60)
        check_all_was_read(server, publishers, readers)
        assert all(reader.breaks >= 2 for reader in readers)
        assert ask(server, "GET", "/ready", token=None).status == 200


def wait_until_read(publishers: list[Publisher], readers: list[ResumingReader]) -> None:
    """More was published, and each reader has got some of it; so far none has missed anything."""
    before = [len(reader.got) for reader in readers]
    wait_for_more(publishers)
    wait_until(lambda: all(len(reader.got) > count for reader, count in zip(readers, before, strict=True)))
    check_order(publishers, readers)


def check_all_was_read(server: RunningServer, publishers: list[Publisher], readers: list[ResumingReader]) -> None:
    """After some more all publishers end. What was acknowledged is there, and was read, each once."""
    wait_for_more(publishers)
    for one in publishers:
        one.ending.set()
        one.join(30)
    for publisher, reader in zip(publishers, readers, strict=True):
        assert publisher.failed == []
        assert bodies(server, publisher.stream) == publisher.acknowledged
        wait_until(lambda p=publisher, r=reader: r.got[-1:] == p.acknowledged[-1:])
        assert reader.got == publisher.acknowledged, reader.history


def check_order(publishers: list[Publisher], readers: list[ResumingReader]) -> None:
    """So far no reader has missed anything. One may have got what its publisher has no answer for yet."""
    for publisher, reader in zip(publishers, readers, strict=True):
        acknowledged, got = list(publisher.acknowledged), list(reader.got)
        shorter = min(len(acknowledged), len(got))
        assert got[:shorter] == acknowledged[:shorter], reader.history


def wait_for_more(publishers: list[Publisher]) -> None:
    before = [len(one.acknowledged) for one in publishers]
    wait_until(lambda: all(len(p.acknowledged) > b + 8 for p, b in zip(publishers, before, strict=True)), within=60)


def test_workers_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        check_killed_workers(server)


@pytest.mark.parametrize("sabotage", ["trusting", "repeating"])
def test_the_same_check_finds_workers_that_lose_or_double_something(tmp_path: Path, sabotage: str) -> None:
    with started(tmp_path, sabotage) as server, pytest.raises((TooLate, AssertionError)):
        check_killed_workers(server)


def test_a_log_process_that_is_killed_ends_all_and_all_begin_again(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        check_killed_log(server)


def test_the_same_check_finds_a_log_that_answers_before_it_has_stored(tmp_path: Path) -> None:
    with started(tmp_path, "hasty") as server, pytest.raises((TooLate, AssertionError)):
        check_killed_log(server)


def test_a_machine_that_is_stopped_while_its_workers_start_ends_without_an_error(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        os.kill(pids_of(server, "log_process")[0], signal.SIGKILL)
        wait_until(lambda: server.log_text().count("log_process.started") == 2)
        server.process.terminate()
        assert server.process.wait() == 0
        assert "never retrieved" not in server.log_text()


def test_nothing_is_left_of_a_machine_whose_first_process_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        children = [*pids_of(server, "log_process"), *pids_of(server, "worker")]
        assert publish(server, "/s", b"before").status == 201
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}/fd").exists() and _runs(pid) for pid in children))
        server.restart()
        assert bodies(server, "/s") == ["before"]


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
