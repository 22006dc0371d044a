"""The processes of a machine with several workers, each told over its standard input what it is.

    python -m penstock.node.worker_main        what comes in is one `Role` as JSON

`cli/worker_supervisor.py` starts them, and again when they end: one that keeps the log, and workers. Each says in one
line on its standard output that it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import msgspec

from penstock import logs
from penstock.api.auth import open_admin_token, open_keys
from penstock.core.background import Background
from penstock.core.clock import WallClock
from penstock.core.log import prepare
from penstock.engines.local import LogServer
from penstock.errors import PenstockError
from penstock.http.event_loop import run_loop
from penstock.node.engine import check_server_name, open_engine
from penstock.node.process import make_directory, run, tune_interpreter
from penstock.settings import Settings

log = logging.getLogger("penstock")

READY = "the log is open"


class Role(msgspec.Struct, frozen=True):
    """What a process is to be."""

    settings: Settings
    data: str
    socket: str = ""  # where the log process is to listen; a worker has it in its settings


def main() -> int:
    """Be what standard input says, until SIGTERM; returns the exit code."""
    role = msgspec.json.decode(sys.stdin.buffer.read(), type=Role)
    logs.set_up(role.settings.logs.format, role.settings.logs.level)
    try:
        return keep_log(role) if role.socket else run(role.settings, Path(role.data))
    except PenstockError as error:
        log.critical(error.code, extra={"error": str(error), "remedy": error.remedy})
        return 1


def keep_log(role: Role) -> int:
    """Be the process that keeps the log."""
    data = Path(role.data)
    make_directory(data)
    tune_interpreter()
    # Workers read these: the first to come would otherwise make them while the second does the same.
    open_keys(data)
    open_admin_token(data, role.settings.auth.admin_token, role.settings.auth.admin_token_file)
    run_loop(_keep_log(role.settings, data, Path(role.socket)))
    return 0


async def _keep_log(settings: Settings, data: Path, path: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    background = Background()
    async with open_engine(settings, data, WallClock(), background) as engine:
        await check_server_name(engine, settings.eventhorizon.server)
        await prepare(engine.log)
        async with LogServer(engine, path, background):
            print(READY, flush=True)  # noqa: T201
            await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
