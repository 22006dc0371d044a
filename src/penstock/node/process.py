"""The process that a node runs in: the event loop, signals, and the interpreter's own settings."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

from penstock.api.auth import open_admin_token
from penstock.api.console import console_address
from penstock.errors import ConfigInvalid
from penstock.http.event_loop import run_loop
from penstock.http.tls import map_large_buffers
from penstock.node.doors import check_doors
from penstock.node.node import Node
from penstock.settings import Settings

log = logging.getLogger("penstock")

SWITCH_SECONDS = 0.0005
"""After which the loop lets another thread have the interpreter that wants it. The writer's thread wants it several
times for each commit: with Python's 5 ms a loop that is busy with one peer delays everybody's publish by as many times
5 ms. Measured beside a flood of WebSocket frames: 85–130 ms of the loop's time before an answer instead of 195–340."""


def run(settings: Settings, data: Path) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    check_doors(settings.server.doors)
    make_directory(data)
    tune_interpreter()
    if settings.server.tls_certificate:
        map_large_buffers()
    run_loop(_run(settings, data))
    return 0


def make_directory(data: Path) -> None:
    """See to the data directory; `ConfigInvalid` if it cannot be made."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid("--data", f"{data} cannot be made: {error.strerror}") from error


def tune_interpreter() -> None:
    """Set what Python does beside our work.

    Hardly anything here is part of a cycle, and looking for some among thousands of connections takes longer
    than a publish. What was made up to now stays for good.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(SWITCH_SECONDS)


def end_at_once() -> None:
    """End a worker that has lost its log process: it could only refuse what the others answer.

    There is nothing to drain, as nothing more can be stored or told. What started this process starts it again.
    """
    log.critical("worker.lost", extra={"pid": os.getpid()})
    os._exit(1)


async def _run(settings: Settings, data: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Node(settings, data, end_at_once) as node:
        loop.add_signal_handler(signal.SIGHUP, node.reload)
        print(f"penstock ready on {node.url} durability={node.durability}", flush=True)  # noqa: T201
        if sys.stdout.isatty():  # somebody reads it; into a log no token goes
            token = open_admin_token(data, settings.auth.admin_token, settings.auth.admin_token_file)
            print(f"console at {console_address(node.url, token)}", flush=True)  # noqa: T201
        await stop.wait()
        log.info("server.stopping")
