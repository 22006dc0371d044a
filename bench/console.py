"""What an open console costs and how soon its views are there, with many streams, wires and deliveries of one event.

For each view: the time of the calls that it makes when it is opened, and the CPU that the server takes for them,
against `GET /health`. In Chromium, where that is installed: the time until the view is drawn, against one that asks
the server for nothing; and the share of a core that the server takes while the view stays open, against no console.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.machine import cpu_seconds
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from bench.streams import make_streams
from penstock.testing import RunningServer, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

STREAM: Final = "/bench"
MUST_MS, MUST_PERCENT = 1_000.0, 3.0
ALIVE: Final = "/health"
FLOOR_LOOKS: Final = 10  # at it for each look at a view: it is that much shorter
MARK_HEX: Final = requests.MARK.hex()


@dataclass(frozen=True, slots=True)
class View:
    """One view of the console: its address, what is there when it is drawn, and what it asks for."""

    place: str
    drawn: str  # a selector
    calls: tuple[str, ...] = ()


VIEWS: Final = {
    "now": View("now", ".chart canvas", ("/v1/stats",)),
    "streams": View("streams", "tbody tr", ("/v1/streams?sort=traffic&limit=200",)),
    "streams, searched": View("", "", ("/v1/streams?search=no-such-name&sort=traffic&limit=200",)),
    "way": View("way/ENTRY", "figure canvas, figure svg", ("/v1/why/recipients?entry=ENTRY&limit=50",)),
    "way, searched": View("", "", ("/v1/why/recipients?entry=ENTRY&limit=50&search=reader-19",)),
    "recipients": View("recipients", "tbody tr", ("/v1/recipients?sort=name&from=0&limit=100",)),
    "trouble": View("trouble", ".notice.empty, tbody tr", ("/v1/trouble?limit=100",)),
    "pipeline": View(
        "pipeline",
        "section.card dl",
        ("/v1/pipeline", "/v1/pipeline/tables", "/v1/pipeline/hours?hours=48", "/v1/retention/plan", "/v1/lake/sql"),
    ),
}
FLOOR: Final = View("try", ".step")
DRAW: Final = """async ([place, drawn]) => {
    const begun = performance.now();
    location.hash = `#/${place}`;
    const view = `main > .view.${place.split("/")[0]}`;
    const there = () => drawn.split(", ").some((one) => document.querySelector(`${view} ${one}`));
    while (!there()) await new Promise(requestAnimationFrame);
    return performance.now() - begun;
}"""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("console", "What an open console costs, and how soon its views are there.")
    parser.add_argument("--streams", type=int, default=10_000, help="streams that there are")
    parser.add_argument("--wires", type=int, default=5_000, help="tails that are open")
    parser.add_argument("--deliveries", type=int, default=20_000, help="of one event, a wave of wires at a time")
    parser.add_argument("--looks", type=int, default=10, help="at each view in a round")
    parser.add_argument("--open", type=float, default=15, metavar="SECONDS", help="that each view stays open")
    parser.add_argument("--no-page", action="store_true", help="leave out Chromium")
    given = parser.parse_args(argv)
    if given.quick:
        given.streams, given.wires, given.deliveries, given.looks, given.rounds, given.no_page = 500, 20, 60, 3, 1, True
    with reporting("console", given) as (report, folder):
        (folder / "data").mkdir(mode=0o700)
        asyncio.run(make_streams(folder / "data", given.streams))
        with penstock(folder / "data") as (server, _), crowd(server, folder, given) as entry:
            _measure_calls(report, server, entry, given)
            if not given.no_page and (program := shutil.which("chromium")):
                _measure_pages(report, server, program, entry, given)
    return 0


@contextmanager
def crowd(server: RunningServer, folder: Path, given: argparse.Namespace) -> Iterator[int]:
    """One event, delivered so many times; the last wires to get it stay open. Its id.

    They come in waves: as many connections at once are more than a process may have files.
    """
    entry: int = _asked(server, "POST", f"/v1/publish?stream={STREAM}", requests.event())["id"]
    waves = max(1, given.deliveries // given.wires)
    with ExitStack() as last:
        for wave in range(waves):
            say(f"{given.wires:,} wires, {wave + 1} of {waves}")
            names = range(wave * given.wires, (wave + 1) * given.wires)
            tails = [
                requests.tail(STREAM, server.admin_token, after=entry - 1, consumer=f"reader-{number}")
                for number in names
            ]
            file = requests.save(folder / "tails.json", *tails)
            with ExitStack() as opened:
                child = opened.enter_context(Child("wires", server.port, given.wires, file, f"until={MARK_HEX}"))
                child.answer()
                if wave == waves - 1:
                    last.push(opened.pop_all())
        path = f"/v1/why/recipients?entry={entry}&limit=1"
        wait_until(lambda: _asked(server, "GET", path)["total"] >= waves * given.wires, within=60)
        yield entry


def _asked(server: RunningServer, method: str, path: str, body: bytes | None = None) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, body, {"Authorization": f"Bearer {server.admin_token}"})
        return json.loads(connection.getresponse().read())


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Look:
    """What one look at a view took, by the clock and of the server's CPU."""

    ms: float
    cpu_ms: float


def _measure_calls(report: Report, server: RunningServer, entry: int, given: argparse.Namespace) -> None:
    looks: dict[str, list[Look]] = {name: [] for name in ("", *VIEWS)}
    for number in range(given.rounds):
        say(f"calls, round {number + 1} of {given.rounds}")
        settle(given)
        for name, rounds in looks.items():
            calls = VIEWS[name].calls if name else (ALIVE,)
            times = given.looks if name else FLOOR_LOOKS * given.looks
            rounds.append(_look(server, [call.replace("ENTRY", str(entry)) for call in calls], times))
    floor = median([look.ms for look in looks.pop("")])
    size = {"streams": given.streams, "wires": given.wires, "deliveries": given.deliveries}
    for name, rounds in looks.items():
        times = [look.ms for look in rounds]
        detail = {**size, "cpu_ms": median([look.cpu_ms for look in rounds]), "rounds": [round(ms, 1) for ms in times]}
        report.add(Figure(f"calls of {name}", median(times), "ms", floor, "GET /health", MUST_MS, detail=detail))


def _look(server: RunningServer, paths: list[str], times: int) -> Look:
    """The time of the middle one: a look of a tenth of a millisecond is soon ten times as long on a shared core."""
    headers, taken = {"Authorization": f"Bearer {server.admin_token}"}, []
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        _get(connection, ALIVE, headers)  # the connection itself is not measured
        cpu = cpu_seconds(server.process.pid)
        for _ in range(times):
            begun = time.perf_counter()
            for path in paths:
                _get(connection, path, headers)
            taken.append(time.perf_counter() - begun)
        spent = cpu_seconds(server.process.pid) - cpu
    return Look(1e3 * median(taken), 1e3 * spent / times)


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> None:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise SystemExit(f"{path} was answered with {answer.status}")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def _measure_pages(report: Report, server: RunningServer, program: str, entry: int, given: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    views = {name: view for name, view in VIEWS.items() if view.place}
    drawn: dict[str, list[float]] = {name: [] for name in views}
    floors: list[float] = []
    idle = _percent(server, given.open)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{server.url}/console/#token={server.admin_token}")
        page.wait_for_selector("main canvas")
        for number in range(given.rounds):
            say(f"pages, round {number + 1} of {given.rounds}")
            settle(given)
            for name, view in views.items():
                floors.append(_draw(page, FLOOR, entry))
                drawn[name].append(_draw(page, view, entry))
        shares = {}
        for name, view in views.items():
            say(f"{name} stays open for {given.open:g} s")
            _draw(page, view, entry)
            shares[name] = _percent(server, given.open)
        browser.close()
    for name, times in drawn.items():
        detail = {"rounds": [round(ms, 1) for ms in times]}
        floor = median(floors), "a view without calls"
        report.add(Figure(f"{name} in Chromium", median(times), "ms", *floor, MUST_MS, detail=detail))
    for name, share in shares.items():
        report.add(Figure(f"{name} stays open", share, "% of a core", idle, "no console", MUST_PERCENT))


def _draw(page: Page, view: View, entry: int) -> float:
    """Milliseconds from the address to the view."""
    taken: float = page.evaluate(DRAW, [view.place.replace("ENTRY", str(entry)), view.drawn])
    return taken


def _percent(server: RunningServer, seconds: float) -> float:
    """The share of a core that the server takes in the next seconds."""
    before, begun = cpu_seconds(server.process.pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(server.process.pid) - before) / (time.monotonic() - begun)
