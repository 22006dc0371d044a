"""`serve` and `up`. An address that cannot be listened on is refused in `http/listener.py`."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import logs
from penstock.cli.options import DATA, Config, Data, Set, settings_from
from penstock.cli.pipeline_supervisor import Supervisor
from penstock.cli.processes import end_with_parent
from penstock.units import parse_workers

log = logging.getLogger("penstock")

DEMO = "/demo"
DEMO_SECONDS = 24 * 3600
_READY = re.compile(r"penstock ready on (\S+)")
OTHER_FILES = 200  # that a server has open besides its connections: the log, its readers, outgoing calls


def serve(
    data: Data = DATA,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes a free one.")] = "",
    engine: Annotated[str, typer.Option(help="Where the log is kept: sqlite, memory, or nats://a,b,c.")] = "",
    doors: Annotated[str, typer.Option(metavar="NAMES", help="Doors to open, with commas; all by default.")] = "",
    roles: Annotated[str, typer.Option(metavar="NAMES", help="What this node does: endpoint, connection; all.")] = "",
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes that have connections; auto: cores.")] = "",
    admin_token: Annotated[str, typer.Option(metavar="TOKEN", help="Better in PENSTOCK_AUTH_ADMIN_TOKEN.")] = "",
    config: Config = None,
    set: Set = None,
    insecure: Annotated[bool, typer.Option(help="Allow plain HTTP off loopback.")] = False,
) -> int:
    """Run the server until SIGTERM.

    Prints one line when it accepts connections, on a terminal the address of its console, and its log on standard
    error.

    \b
    ./penstock serve --data ./data --listen 127.0.0.1:8800
    ./penstock serve --data ./data --config penstock.toml --set log.keep=30d
    ./penstock serve --data ./data --workers auto
    """
    settings = settings_from(
        config,
        set,
        server_listen=listen,
        log_engine=engine,
        server_doors=doors,
        server_roles=roles,
        server_workers=workers,
        auth_admin_token=admin_token,
        server_insecure=insecure,
    )
    logs.set_up(settings.logs.format, settings.logs.level)
    _allow_open_files(settings.server.connections)
    if parse_workers(settings.server.workers) > 1:
        from penstock.cli.worker_supervisor import run_machine

        return run_machine(settings, data)
    from penstock.node.process import run

    return run(settings, data)


def _allow_open_files(connections: int) -> None:
    """As many as may be had without asking: the usual soft limit of 1,024 is a small crowd.

    Connections for which there is no file are dropped by libuv, and nobody hears of it: so it is said beforehand.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and connections + OTHER_FILES > hard:
        remedy = f"raise the limit (ulimit -Hn), or set server.connections to {max(1, hard - OTHER_FILES)}"
        log.warning("files.too_few", extra={"files": hard, "connections": connections, "remedy": remedy})


def up(
    data: Data = DATA,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; 127.0.0.1:8800 by default.")] = "",
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes that have connections; auto: cores.")] = "",
    config: Config = None,
    set: Set = None,
    no_pipeline: Annotated[bool, typer.Option("--no-pipeline", help="The server alone.")] = False,
    no_system: Annotated[bool, typer.Option("--no-system", help="Never install Debian packages.")] = False,
) -> int:
    """Start everything on this machine, and show how to try it.

    The server is ready first; the address of its console follows, and two curl lines with a token of their own.
    Then the data pipeline starts on a local Spark, with its lake in the data directory; its log is pipeline.log there.

    \b
    ./penstock up
    ./penstock up --data /var/lib/penstock --no-pipeline
    """
    settings = settings_from(
        config, set, server_listen=listen, server_workers=workers
    )  # a mistake is told before anything starts
    if no_system:
        os.environ["PENSTOCK_NO_SYSTEM"] = "1"
    lake = settings.lake.url if "://" in settings.lake.url else str(Path(settings.lake.url or data / "lake").absolute())
    arguments = ["--data", str(data), *(f"--set={pair}" for pair in set or [])]
    if not no_pipeline and not settings.lake.url:
        Path(lake).mkdir(mode=0o700, parents=True, exist_ok=True)
        arguments.append(f"--set=lake.url={lake}")
    arguments += [f"--workers={workers}"] * bool(workers)
    arguments += [f"--listen={listen}"] * bool(listen) + [f"--config={config}"] * bool(config)
    server = _start(arguments)
    if url := _wait_for_ready(server):
        from penstock.api.auth import open_admin_token

        token = open_admin_token(data, settings.auth.admin_token, settings.auth.admin_token_file)
        _show_how_to_try(url, data, token)
        if not no_pipeline:
            with Supervisor(url, token, lake, data / "pipeline.log"):
                return server.wait()
    return server.wait()


def _start(arguments: list[str]) -> subprocess.Popen[str]:
    """The server as a child that gets our signals, and that ends when we do."""
    command = [sys.executable, "-m", "penstock", "serve", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_end_with_us)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    # A terminal sends Ctrl-C to the child as well; we only have to outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return server


def _end_with_us() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_with_parent()


def _wait_for_ready(server: subprocess.Popen[str]) -> str:
    """Pass its output on up to the ready line; return its URL, or nothing when it ended."""
    for line in server.stdout or ():
        print(line, end="", flush=True)
        if found := _READY.match(line):
            return found[1]
    return ""


def _show_how_to_try(url: str, data: Path, token: str) -> None:
    from penstock.api.console import console_address

    listen, publish = demo_lines(data, url, url)
    print(
        f"\nSee it work, in a browser:\n  {console_address(url, token)}\n"
        f"\nListen, in another terminal:\n  {listen}\n\nPublish, in a third:\n  {publish}\n",
        flush=True,
    )


def demo_lines(data: Path, listen_url: str, publish_url: str) -> tuple[str, str]:
    """Two commands to try a server with, one that listens and one that publishes, with a token that holds for a day."""
    from penstock.api.auth import open_keys

    token = open_keys(data).issue("demo", publish=(DEMO,), subscribe=(DEMO,), ttl=DEMO_SECONDS)
    bearer = f"-H 'Authorization: Bearer {token}'"
    return (
        f"curl -N '{listen_url}/v1/tail?streams={DEMO}' \\\n    {bearer}",
        f"curl -X POST '{publish_url}/v1/publish?stream={DEMO}' -d 'hello' \\\n    {bearer}",
    )
