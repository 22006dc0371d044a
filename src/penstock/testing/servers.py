"""A real server in a process of its own, on a free port of the loopback address."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from penstock.settings import Settings
from penstock.testing.waiting import TooLate, wait_until

READY_SECONDS = 60
"""A start takes a second of work; on a machine that does ten other things that can be long."""

INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)  # how a server ends that Ctrl-C meets while it starts

_READY = re.compile(
    r"^penstock ready on (?P<url>\w+://\S+:(?P<port>\d+)) durability=(?P<durability>\S+)$", re.MULTILINE
)


class ServerFailed(AssertionError):
    """The server ended, or was not ready in time."""


class RunningServer:
    """One server process and how to reach it.

    What it writes to standard error is in `log`, beside the data directory, over all restarts.
    """

    module = "penstock"  # what Python runs; another one for a server that is broken on purpose
    before: tuple[str, ...] = ()  # what runs Python, if not we: a program that becomes it, as `strace -D` does

    def __init__(
        self,
        data: Path,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self.data, self.arguments, self._before_exec = data, arguments, before_exec
        self.admin_token = secrets.token_hex(16)
        self.log = data.with_name(data.name + ".log")
        self.url, self.port, self.durability = "", 0, ""
        self._output = data.with_name(data.name + ".out")
        self._environment = {**os.environ, "PENSTOCK_AUTH_ADMIN_TOKEN": self.admin_token, **environment}
        self.process = self._start()

    def stop(self, within: float = 60) -> int:
        """Ask it to end, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"did not stop within {within:g} s\n{self.log_text()}") from None

    def kill(self) -> None:
        """End it without a chance to finish anything."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again on the same port, after stopping it if it still runs."""
        if self.process.poll() is None:
            self.stop()
        self.process = self._start()

    def log_text(self) -> str:
        """What it has written to standard error so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _start(self) -> subprocess.Popen[bytes]:
        listen = f"127.0.0.1:{self.port}"
        serve = [self.module, "serve", "--data", str(self.data), "--listen", listen, *self.arguments]
        with self.log.open("ab") as log, self._output.open("wb") as output:
            process = self._run(serve, output, log)
        try:
            wait_until(lambda: self._is_ready() or process.poll() is not None, within=READY_SECONDS)
            if process.returncode in INTERRUPTED:
                raise KeyboardInterrupt  # ours may be lost: Python ignores what is raised in the hooks of a fork
            if not self._is_ready():
                raise ServerFailed(f"ended with {process.returncode} before it was ready\n{self.log_text()}")
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, TooLate):
                raise ServerFailed(f"was not ready within {READY_SECONDS} s\n{self.log_text()}") from None
            raise
        return process

    def _run(self, serve: list[str], output: BinaryIO, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start the process: *serve* is a module and its arguments. tests/forked_servers.py has another way."""
        command = [*self.before, sys.executable, "-m", *serve]
        if self._before_exec is None:
            return subprocess.Popen(command, stdout=output, stderr=log, env=self._environment)
        # A Ctrl-C that came while the child runs Python would be an exception in it, and an error of ours here.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return subprocess.Popen(
                command, stdout=output, stderr=log, env=self._environment,
                preexec_fn=partial(_become_server, self._before_exec),
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _is_ready(self) -> bool:
        found = _READY.search(self._output.read_text())
        if found:
            self.url, self.port, self.durability = found["url"], int(found["port"]), found["durability"]
        return found is not None


def _become_server(before_exec: Callable[[], None]) -> None:
    """In the child: what was asked for, and the end if Ctrl-C has met it meanwhile."""
    before_exec()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def start_server(
    data: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    before_exec: Callable[[], None] | None = None,
    **settings: object,
) -> Iterator[RunningServer]:
    """Run `penstock serve` on *data* until the block ends; ready when it begins.

    *before_exec* is called in the process before it becomes the server.
    *settings* are named with an underscore for the dot: `server_linger_ms=5`.
    """
    pairs = [f"--set={name.replace('_', '.', 1)}={value}" for name, value in settings.items()]
    server = RunningServer(data, (*arguments, *pairs), environment or {}, before_exec)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def start_log_process(data: Path) -> Iterator[str]:
    """Run the process that keeps the log of a machine; the engine for nodes that are its workers."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, log = data / "log.sock", data.with_name(data.name + ".log")
    role = {"settings": Settings(), "data": str(data), "socket": str(path)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.node.worker_main"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=output,
        )  # fmt: skip
    try:
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(role))
            process.stdin.close()
        if process.stdout is None or not process.stdout.readline():
            raise ServerFailed(f"ended before it was ready\n{log.read_text()}")
        yield f"unix:{path}"
    finally:
        process.terminate()
        process.wait(15)
        if process.stdout is not None:
            process.stdout.close()


def start_nodes(stack: ExitStack, folder: Path, engine: str, count: int = 3, **settings: object) -> list[RunningServer]:
    """Run *count* nodes of one cluster until *stack* ends: they share their admin token and the keys of tokens."""
    from penstock.api.auth import open_keys

    places = [folder / f"node-{number}" for number in range(1, count + 1)]
    for place in places:
        place.mkdir(mode=0o700, exist_ok=True)
    open_keys(places[0])
    for place in places[1:]:
        shutil.copy(places[0] / "keys.json", place / "keys.json")
    token = secrets.token_hex(16)
    settings = {"server_internal_listen": "127.0.0.1:0", **settings}  # where nodes send on what is another's

    def start(place: Path) -> RunningServer:
        environment = {"PENSTOCK_AUTH_ADMIN_TOKEN": token}
        chosen: dict[str, Any] = {"server_node": place.name, **settings} if engine.startswith("unix:") else settings
        node = stack.enter_context(start_server(place, "--engine", engine, environment=environment, **chosen))
        node.admin_token = token
        return node

    with ThreadPoolExecutor(count) as together:
        return list(together.map(start, places))
