"""CPU of the server for what an open console asks, with many streams and wires, against `GET /health`.

The console lists streams every two seconds, searched or not, and is told one second at a time; it looks at the rest
when it is opened. What one look costs, times how often it is made, is the share of a core that an open console takes.
"""

from __future__ import annotations

import asyncio
import http.client
from contextlib import closing

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.machine import cpu_seconds
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from bench.streams import make_streams
from penstock.testing import RunningServer

EVERY_SECONDS = 2.0  # between two looks at the list
MUST_PERCENT = 3.0
ALIVE = "/health"
LOOKS = {
    "streams, busiest first": "/v1/streams?sort=traffic&limit=200",
    "streams, searched": "/v1/streams?search=no-such-name&sort=traffic&limit=200",
    "the last 15 minutes": "/v1/stats",
}


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("console", "CPU of the server for an open console.")
    parser.add_argument("--streams", type=int, default=10_000, help="streams that there are")
    parser.add_argument("--wires", type=int, default=5_000, help="tails that are open")
    parser.add_argument("--looks", type=int, default=50, help="of each kind in a round")
    given = parser.parse_args(argv)
    if given.quick:
        given.streams, given.wires, given.looks, given.rounds = 500, 20, 5, 1
    spent: dict[str, list[float]] = {path: [] for path in (ALIVE, *LOOKS.values())}
    with reporting("console", given) as (report, folder):
        (folder / "data").mkdir(mode=0o700)
        asyncio.run(make_streams(folder / "data", given.streams))
        with penstock(folder / "data") as (server, target):
            file = requests.save(folder / "tail.json", requests.tail("/bench", server.admin_token))
            with Child("wires", server.port, given.wires, file) as wires:
                wires.answer()
                for number in range(given.rounds):
                    say(f"round {number + 1} of {given.rounds}")
                    settle(given)
                    for path, rounds in spent.items():
                        rounds.append(_look(server, target.pid, path, given.looks))
        for name, path in LOOKS.items():
            report.add(_figure(name, spent[path], spent[ALIVE], given.streams, given.wires))
    return 0


def _look(server: RunningServer, pid: int, path: str, times: int) -> float:
    """CPU ms of one look."""
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        before = cpu_seconds(pid)
        for _ in range(times):
            connection.request("GET", path, headers=headers)
            connection.getresponse().read()
        return 1e3 * (cpu_seconds(pid) - before) / times


def _figure(name: str, ours: list[float], floor: list[float], streams: int, wires: int) -> Figure:
    must = MUST_PERCENT / 100 * EVERY_SECONDS * 1e3
    detail = {"streams": streams, "wires": wires, "rounds": [round(ms, 3) for ms in ours]}
    detail["percent"] = round(100 * median(ours) / 1e3 / EVERY_SECONDS, 2)
    return Figure(name, median(ours), "CPU ms/look", median(floor), "GET /health", must, detail=detail)
