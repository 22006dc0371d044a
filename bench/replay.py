"""One reader that catches up with a long log, against rows of SQLite sent down a bare socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.machine import Neighbours, cpu_seconds
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import fill, penstock

STREAM = "/bench/replay"


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("replay", "Catching up from the start of the log.")
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args(argv)
    if given.quick:
        given.events, given.rounds = 5000, 1
    ours: list[dict[str, Any]] = []
    floors: list[dict[str, Any]] = []
    with reporting("replay", given) as (report, folder), penstock(folder / "data") as (server, target):
        say(f"publishing {given.events:,} events")
        fill(server, folder, given.events, STREAM)
        tail = requests.save(folder / "tail.json", requests.tail(STREAM, server.admin_token, after=0))
        with Child("bare_rows", folder / "rows.db", given.events, requests.EVENT_BYTES) as rows:
            port = rows.answer()["port"]
            for number in range(given.rounds):
                say(f"round {number + 1} of {given.rounds}")
                settle(given)
                floors.append(_read(port, tail, given.events, rows.pid))
                ours.append(_read(target.port, tail, given.events, target.pid))
        report.add(_figure(ours, floors))
    return 0


def _read(port: int, request: Path, events: int, pid: int) -> dict[str, Any]:
    before, neighbours = cpu_seconds(pid), Neighbours()
    with Child("reader", port, request, events) as reader:
        reader.answer()
        got = reader.answer()
        got["server_cpu"] = cpu_seconds(pid) - before
        got["neighbours"] = neighbours.cores(got["server_cpu"] + got["cpu"])
    return got


def _figure(ours: list[dict[str, Any]], floors: list[dict[str, Any]]) -> Figure:
    rate, floor = (median([run["events"] / run["seconds"] for run in runs]) for runs in (ours, floors))
    detail = {
        "server_cpu_us": median([1e6 * run["server_cpu"] / run["events"] for run in ours]),
        "floor_cpu_us": median([1e6 * run["server_cpu"] / run["events"] for run in floors]),
        "client_cores": median([run["cpu"] / run["seconds"] for run in ours]),
        "neighbour_cores": median([run["neighbours"] for run in ours]),
        "mb_per_second": median([run["bytes"] / run["seconds"] / 1e6 for run in ours]),
    }
    return Figure(
        "replay to one reader", rate, "events/s", floor, "rows of SQLite down a socket", 200_000, 500_000,
        higher_is_better=True, detail=detail,
    )  # fmt: skip
