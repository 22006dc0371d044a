"""From the command to the line that says it is ready, when everything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.rig.child import ROOT
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import fill, penstock

STARTS = 5
_BARE = """
import asyncio, uvloop
async def serve():
    await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    print("ready", flush=True)
    await asyncio.sleep(60)
uvloop.run(serve())
"""


class NotReady(Exception):
    """The server ended instead of becoming ready."""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("start", "Start to ready.")
    parser.add_argument("--entries", type=int, default=200_000, help="entries of the data directory that is not empty")
    given = parser.parse_args(argv)
    if given.quick:
        given.entries = 1000
    starts = 1 if given.quick else STARTS
    with reporting("start", given) as (report, folder):
        say(f"publishing {given.entries:,} events")
        with penstock(folder / "full") as (server, _):
            fill(server, folder, given.entries, "/bench/start")
        for name, full in (("empty", False), (f"{given.entries:,} entries", True)):
            say(f"{name}: {starts} starts")
            ours, floors = [], []
            _start(folder / "warm", full=False)
            for number in range(starts):
                settle(given)
                floors.append(_seconds([sys.executable, "-c", _BARE]))
                ours.append(_start(folder / ("full" if full else f"empty-{number}"), full=full))
            detail = {"starts": starts, "worst_s": max(ours), "by_wrapper": (ROOT / "penstock").samefile(command()[0])}
            report.add(
                Figure(
                    f"to ready, {name}", median(ours), "s", median(floors), "Python with a bare uvloop listener",
                    1.0, 0.5, detail=detail,
                )
            )  # fmt: skip
    return 0


def command() -> list[str]:
    """What a user types, wrapper included, where that is installed; else what the wrapper runs."""
    if (ROOT / ".venv" / "penstock-serve.stamp").exists():
        return [str(ROOT / "penstock"), "serve"]
    return [sys.executable, "-m", "penstock", "serve"]


def _start(data: Path, *, full: bool) -> float:
    if full and not (data / "penstock.db").exists():
        raise NotReady(f"{data} has no log")
    return _seconds([*command(), "--data", str(data), "--listen", "127.0.0.1:0"])


def _seconds(words: list[str]) -> float:
    """Time from starting *words* to their first line of output; they are stopped properly afterwards."""
    began = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment()) as process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            seconds = time.perf_counter() - began
        finally:
            process.terminate()
    if b"ready" not in line:
        raise NotReady(f"{' '.join(words[:4])} ended with {process.returncode}")
    return seconds


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}
