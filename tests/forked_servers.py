"""Servers that are forked off a process which has imported them, instead of each importing itself.

Python and its imports are four fifths of the CPU time that a server takes to be ready, and a run of all tests starts
hundreds. What runs is the same: a process of its own, with its own arguments, environment and output, from `__main__`
on. Those that need more of a start (`before_exec`, strace, a sabotage that comes before the imports, variables that
Python or a library reads) start as ever, and so do all that are started as commands: tests/cli/ has the whole of it.

`python -m tests.forked_servers NUMBER` is that process. It serves requests on the socket of that number.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from penstock.testing import RunningServer

ROOT = Path(__file__).parents[1]
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None  # its number
CLONE_PARENT = 0x8000
REQUEST_BYTES = 1 << 20
IMPORTED = (
    "penstock.cli.app", "penstock.node.process", "penstock.engines.sqlite", "penstock.engines.jetstream",
    "penstock.engines.local", "typer._adapters",
)  # fmt: skip


class ForkingProcess:
    """The process that has imported a server, as the tests see it; it begins with the first server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @cached_property
    def _environment(self) -> dict[str, str]:
        """That of the first server: by then this process has its mark (tests/limits.py)."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def can_start(self, server: RunningServer) -> bool:
        """Whether it needs nothing else of a start: of the environment only what a server itself reads may differ."""
        known = self._environment
        given = {**server._environment, "PYTHONPATH": known["PYTHONPATH"]}
        differ = (name for name in {*known, *given} if known.get(name) != given.get(name))
        usual = server.module == "penstock" and not server.before and server._before_exec is None
        return CLONE is not None and usual and all(name.startswith(("PENSTOCK_", "PYTEST_")) for name in differ)

    def start(self, serve: list[str], environment: dict[str, str], output: BinaryIO, log: BinaryIO) -> int:
        """Fork a server off; returns its process, which is a child of ours."""
        request = json.dumps({"serve": serve, "environment": environment, "folder": str(Path.cwd())}).encode()
        with self._lock:
            self._socket = self._socket or self._begin()
            socket.send_fds(self._socket, [request], [output.fileno(), log.fileno()])
            return int(self._socket.recv(20))

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.forked_servers", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        return ours

    def end(self) -> None:
        """End it, not its servers. It would end with us as well."""
        if self._socket and self._process:
            self._socket.close()
            self._process.wait()
            self._socket = None


forking = ForkingProcess()


class ForkedServer(subprocess.Popen[bytes]):
    """A server that was forked off; to its parent a process like any other."""

    def __init__(self, serve: list[str], environment: dict[str, str], output: BinaryIO, log: BinaryIO) -> None:
        self._given = environment, output, log
        super().__init__(serve)

    def _execute_child(self, args: list[str], *_: object) -> None:
        """In place of fork and exec."""
        self.pid, self._child_created = forking.start(args, *self._given), True


start_by_exec = RunningServer._run


def start_forked(server: RunningServer, serve: list[str], output: BinaryIO, log: BinaryIO) -> subprocess.Popen[bytes]:
    """In place of `RunningServer._run`."""
    if not forking.can_start(server):
        return start_by_exec(server, serve, output, log)
    return ForkedServer(serve, server._environment, output, log)


def serve(number: int) -> None:
    """Fork a server off for each request, until nobody is there to ask."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=number) as requests:
        while True:
            request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 2)
            if not request:
                sys.exit()
            child = fork_as_sibling()
            if child == 0:
                break
            for file in files:
                os.close(file)
            requests.send(b"%d" % child)
    become(json.loads(request), files)


def fork_as_sibling() -> int:
    """As os.fork(), but the new process is a child of our parent, who waits for it."""
    python, system = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    child: int = system.syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return child


def become(wanted: dict[str, Any], files: Sequence[int]) -> None:
    """Be the server that is wanted."""
    for file, standard in zip(files, (1, 2), strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    time.tzset()
    module = wanted["serve"][0]
    sys.argv = wanted["serve"]
    gc.unfreeze()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
