"""`serve --workers N`: one process that keeps the log, N that have the connections, and this one that looks after them.

A worker that ends is started again; its wires have come back to the others by then. When the process that keeps the log
ends, all end, and everything is started again. Children end with this process, whatever ends it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from penstock.cli.processes import end_with_parent
from penstock.errors import ConfigInvalid
from penstock.http.listener import bind
from penstock.node.worker_main import Role
from penstock.settings import Settings
from penstock.units import parse_address, parse_workers
from penstock.wire.retrying import RetryPolicy

log = logging.getLogger("penstock.machine")

RETRY: Final = RetryPolicy(first=0.1, longest=10.0)
STEADY_SECONDS: Final = 30.0
"""A process that ran for so long ended for a new reason: the next one is started at once."""
SPARE_SECONDS: Final = 5.0
"""What each process is given to end, beyond `server.drain_seconds`; then it is killed."""
BUSY_SECONDS: Final = 2.0
"""How long the address may be in use by processes that are ending."""
_KILLED = -int(signal.SIGKILL)


class NotReady(Exception):
    """A process ended before it was ready."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class RestartPace:
    """When a process that has ended is started again: ever later, if it ends soon after it began again and again."""

    def __init__(self) -> None:
        self._failures = 0

    def pause(self, code: int, lived_seconds: float) -> float:
        """Seconds to wait after one that ended with *code*."""
        self._failures = self._failures + 1 if lived_seconds < STEADY_SECONDS else 0
        if not self._failures or (self._failures == 1 and code == _KILLED):
            return 0.0  # killed once: by a person, or for what its own life had brought about
        return RETRY.delay(self._failures, 1)


class Child:
    """One process of this machine."""

    module = "penstock.node.worker_main"  # what Python runs; another one for processes that are broken on purpose

    def __init__(
        self, process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader
    ) -> None:
        self.process, self._stdin, self._stdout = process, stdin, stdout

    @classmethod
    async def start(cls, role: Role) -> Child:
        """Start a process, and tell it what it is."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", cls.module,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
            start_new_session=True,  # a terminal's Ctrl-C is for us alone: the log must outlive its workers
        )  # fmt: skip
        child = cls(process, cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout))
        try:
            await child._tell(role)
        except BaseException:  # cancelled: nobody else knows of it, or would end it
            child.send(signal.SIGKILL)
            raise
        return child

    async def _tell(self, role: Role) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which is seen later
            self._stdin.write(msgspec.json.encode(role))
            await self._stdin.drain()
            self._stdin.close()

    async def ready(self) -> str:
        """The line that it says when it is ready; `NotReady` if it ends first."""
        line = (await self._stdout.readline()).decode().strip()
        if not line:
            raise NotReady(await self.process.wait())
        return line

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def end(self, within: float, killed: str) -> int:
        """Ask it to end, and see to it that it does; *killed* is in our log if it had to be."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError:
            log.error(killed, extra={"pid": self.process.pid, "had_seconds": within})
            self.send(signal.SIGKILL)
            return await self.process.wait()


class WorkerSupervisor:
    """All processes of one machine, until SIGTERM."""

    def __init__(self, settings: Settings, data: Path, listen: str) -> None:
        path = data.absolute() / "log.sock"
        self._log_role = Role(settings, str(data), str(path))
        self._settings, self._data, self._path, self._listen = settings, data, path, listen
        self._count = parse_workers(settings.server.workers)
        self._within = settings.server.drain_seconds + SPARE_SECONDS
        self._workers: dict[int, Child] = {}
        self._stop = asyncio.Event()
        self._was_ready = False

    async def run(self) -> int:
        """Keep everything running; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        failures = 0
        while True:
            began = time.monotonic()
            try:
                code = await self._live()
            except NotReady as error:
                code = error.code
                if not self._was_ready:
                    return code
            if self._stop.is_set():
                return int(code == _KILLED)  # then the log was not closed: the next start has more to do
            failures = failures + 1 if time.monotonic() - began < STEADY_SECONDS else 1
            pause = RETRY.delay(failures, 1)
            log.error("log_process.ended", extra={"code": code, "again_in": pause})
            await self._pause(pause)
            if self._stop.is_set():
                return 0

    async def _live(self) -> int:
        """One life of the log process, with all its workers; ends with it, or when this one is to stop."""
        loop, keeper = asyncio.get_running_loop(), await self._start(self._log_role, "log")
        if keeper is None:
            return 0
        ended = asyncio.ensure_future(keeper.process.wait())
        keeping: list[asyncio.Task[None]] = []
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await keeper.ready()
            log.info("log_process.started", extra={"pid": keeper.process.pid})
            ready: list[asyncio.Future[str]] = [loop.create_future() for _ in range(self._count)]
            keeping = [asyncio.create_task(self._keep_worker(n, one)) for n, one in enumerate(ready, 1)]
            lines: asyncio.Future[list[str]] = asyncio.gather(*ready)
            first: set[asyncio.Future[Any]] = {ended, stopping, lines}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if lines.done():
                if not self._was_ready:
                    print(lines.result()[0], flush=True)
                self._was_ready = True
                await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            else:
                lines.cancel()
                await asyncio.gather(lines, return_exceptions=True)
            if self._stop.is_set():
                await self._drain()
            return await keeper.end(self._within, "log_process.killed")
        finally:
            stopping.cancel()
            for task in keeping:
                task.cancel()
            for worker in self._workers.values():
                worker.send(signal.SIGKILL)
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(worker.process.wait() for worker in self._workers.values()))
            self._workers.clear()
            keeper.send(signal.SIGKILL)
            await ended

    async def _keep_worker(self, number: int, ready: asyncio.Future[str]) -> None:
        """Start the worker of that number, again and again."""
        pace = RestartPace()
        while (worker := await self._start(self._role_of(number), f"worker-{number}")) is not None:
            self._workers[number], began = worker, time.monotonic()
            try:
                line = await worker.ready()
                log.info("worker.started", extra={"worker": number, "pid": worker.process.pid})
                if not ready.done():
                    ready.set_result(line)
                code = await worker.process.wait()
            except NotReady as error:
                code = error.code
                if not self._was_ready and not ready.done():
                    ready.set_exception(error)
                    return
            if self._stop.is_set():
                return
            pause = pace.pause(code, time.monotonic() - began)
            log.error("worker.ended", extra={"worker": number, "code": code, "again_in": pause})
            await self._pause(pause)

    async def _start(self, role: Role, name: str) -> Child | None:
        """Start a process, however long the system has none for us; None if this one is to stop meanwhile."""
        failures = 0
        while not self._stop.is_set():
            try:
                return await Child.start(role)
            except (OSError, subprocess.SubprocessError) as error:  # no memory, no files, too many processes
                failures += 1
                pause = RETRY.delay(failures, 1)
                log.error("process.not_started", extra={"node": name, "error": str(error), "again_in": pause})
            await self._pause(pause)
        return None

    async def _drain(self) -> None:
        log.info("server.stopping")
        await asyncio.gather(*(worker.end(self._within, "worker.killed") for worker in self._workers.values()))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    def _reload(self) -> None:
        for worker in self._workers.values():
            worker.send(signal.SIGHUP)

    def _role_of(self, number: int) -> Role:
        """What a worker is: a node on the log process, whose name stays the same over its lives."""
        settings = self._settings
        server = replace(
            settings.server, listen=self._listen, node=f"worker-{number}", internal_listen="127.0.0.1:0",
            internal_address="",
        )  # fmt: skip
        return Role(
            replace(settings, server=server, log=replace(settings.log, engine=f"unix:{self._path}")), str(self._data)
        )


@contextmanager
def reserved(listen: str) -> Iterator[str]:
    """The address that all workers share; nobody else gets it meanwhile, and port 0 has become a free one."""
    host, port = parse_address(listen)
    if port:
        _check_nobody_listens(host, port)
    with bind(host, port, shared=True) as reserving:  # it never listens, so no connection comes here
        port = reserving.getsockname()[1]
        yield f"[{host}]:{port}" if reserving.family == socket.AF_INET6 else f"{host}:{port}"


def _check_nobody_listens(host: str, port: int) -> None:
    """Sockets that share an address do not see each other: without this two servers would share their clients."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            bind(host, port).close()
        except ConfigInvalid:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def run_machine(settings: Settings, data: Path) -> int:
    """Run the workers and the process that keeps their log until SIGTERM; returns the exit code."""
    if settings.log.engine not in ("sqlite", "memory"):
        raise ConfigInvalid(
            "server.workers",
            f"workers need a log on this machine, not {settings.log.engine.partition(':')[0]}",
            remedy="On NATS start as many nodes as you want, each with --workers 1.",
        )
    with reserved(settings.server.listen) as listen:
        return asyncio.run(WorkerSupervisor(settings, data, listen).run())
