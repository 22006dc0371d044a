"""A pusher of the server and an app on the same machine: how fast lines are applied, and how soon.

The app keeps every line in SQLite, in one transaction with its position. The floor is the same app, fed with
ready-made pushes over one connection: what it could take if reading, pushing and the ledger cost nothing.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.load import Target
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from penstock.testing import RunningServer

SUB = "/_sub/bench"
PAGE = 1000


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("push", "Lines applied by an app behind a pusher.")
    parser.add_argument("--lines", type=int, default=200_000, help="of the one stream")
    parser.add_argument("--appends", type=int, default=300, help="to an idle app")
    parser.add_argument("--streams", type=int, default=1000, help="with one append each")
    given = parser.parse_args(argv)
    if given.quick:
        given.rounds, given.lines, given.appends, given.streams = 1, 3000, 20, 50
    with reporting("push", given) as (report, folder):
        report.add(_throughput(given, folder))
        report.add(_idle(given, folder))
        report.add(_wide(given, folder))
    return 0


def _throughput(given: Any, folder: Path) -> Figure:
    rates, floors = [], []
    for number in range(given.rounds):
        say(f"round {number + 1} of {given.rounds}: {given.lines:,} lines of one stream")
        with pushed(folder / f"one{number}") as bench:
            bench.make("/one")
            bench.fill("/one", given.lines)
            settle(given)
            floors.append(_floor(bench, given.lines))
            began = time.monotonic_ns()
            bench.start()
            rates.append(given.lines / ((bench.app.ask(f"count {given.lines}")["at_ns"] - began) / 1e9))
    return Figure(
        "one stream, in batches", median(rates), "lines/s", median(floors), "ready-made pushes", 40_000, 100_000,
        higher_is_better=True, detail={"lines": given.lines},
    )  # fmt: skip


def _floor(bench: Bench, lines: int) -> float:
    """Lines a second that the app takes by itself."""
    with Child("push_app", bench.folder / "floor.db", SUB) as app:
        wire = http.client.HTTPConnection("127.0.0.1", app.answer()["port"])
        pages = list(_pages(bench, lines))
        began = time.monotonic_ns()
        for page in pages:
            wire.request("POST", "/", page)
            wire.getresponse().read()
        at_ns = app.ask(f"count {lines}")["at_ns"]
        wire.close()
    return lines / ((at_ns - began) / 1e9)


def _pages(bench: Bench, lines: int) -> Iterator[bytes]:
    cursor, left = "/one:0:0", lines
    while left > 0:
        page = bench.call("/reader/read", Cursor=cursor)
        push = {"FromOffset": page["FromOffset"], "Lines": page["Lines"]}
        yield json.dumps({"SubscriptionId": SUB, "Push": push}).encode()
        cursor = page["Lines"][-1]["PtrAfter"]
        left -= sum(not line["MetaType"] for line in page["Lines"])


def _idle(given: Any, folder: Path) -> Figure:
    """From before an append to after the app's commit, one at a time."""
    with pushed(folder / "idle") as bench:
        bench.make("/idle")
        bench.start()
        bench.append("/idle", "first")
        bench.app.ask("count 1")
        bench.app.ask("late")
        settle(given)
        answered = []
        for number in range(given.appends):
            began = time.monotonic_ns()
            bench.append("/idle", f"@{began:019d}")
            answered.append((time.monotonic_ns() - began) / 1e6)
            bench.app.ask(f"count {number + 2}")
        late = sorted(bench.app.ask("late")["late_ns"])
    return Figure(
        "append to applied, idle, p50", late[len(late) // 2] / 1e6, "ms", median(answered), "the append's own answer",
        5, 2, detail={"p99_ms": late[len(late) * 99 // 100] / 1e6, "appends": given.appends},
    )  # fmt: skip


def _wide(given: Any, folder: Path) -> Figure:
    """One append to each of many streams, 64 in flight."""
    names = [f"/wide/{number:04}" for number in range(given.streams)]
    with pushed(folder / "wide") as bench:
        bench.make("/wide", *names)
        bench.start()
        bench.wait_for_announcements(names)
        settle(given)
        file = requests.save(folder / "wide.json", *(bench.request(name, "x") for name in names))
        with Child("publishers", bench.port, 64, file, "total", given.streams) as publishers:
            appends = publishers.answer()["seconds"]  # without the child's own start
            began = time.monotonic_ns() - int(1e9 * appends)
        seconds = (bench.app.ask(f"count {given.streams}")["at_ns"] - began) / 1e9
    return Figure(
        f"{given.streams:,} streams, one append each", seconds, "s", appends, "the appends alone", 2, 1,
        detail={"streams": given.streams},
    )  # fmt: skip


class Bench:
    """A server, a client of it, and an app."""

    def __init__(self, folder: Path, server: RunningServer, target: Target, app: Child) -> None:
        self.folder, self._server, self._target, self.app = folder, server, target, app
        self._app_port, self.port = app.answer()["port"], server.port
        self._wire = http.client.HTTPConnection("127.0.0.1", server.port)
        self._headers = {"Authorization": f"Bearer {server.admin_token}"}
        self.call("/writer/create_stream", Name=SUB)

    def close(self) -> None:
        self._wire.close()

    def call(self, path: str, **fields: object) -> Any:
        self._wire.request("POST", path, json.dumps(fields), self._headers)
        answer = self._wire.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{path} was answered with {answer.status}: {body!r}")
        return json.loads(body) if body != b"OK\n" else None

    def make(self, *names: str) -> None:
        for name in names:
            self.call("/writer/create_stream", Name=name)
            self.call("/writer/subscribe", Stream=name, SubscriptionId=SUB)

    def append(self, stream: str, *lines: str) -> None:
        self.call("/writer/append", Stream=stream, Lines=lines)

    def request(self, stream: str, line: str) -> bytes:
        """An append as a load generator sends it."""
        body = json.dumps({"Stream": stream, "Lines": [line]}).encode()
        return requests.post("/writer/append", body, f"Authorization: {self._headers['Authorization']}\r\n")

    def fill(self, stream: str, count: int) -> None:
        line = requests.event(100).decode()
        for _ in range(count // PAGE):
            self.append(stream, *([line] * PAGE))

    def start(self) -> None:
        self._pusher = self.call("/v1/pushers", url=f"http://127.0.0.1:{self._app_port}/", allow_private=True)["id"]

    def wait_for_announcements(self, names: list[str]) -> None:
        """Until the app has everything that was there before: no line of the streams is missing."""
        quiet = 0
        while quiet < 3:
            time.sleep(0.3)
            self._wire.request("GET", f"/v1/pushers/{self._pusher}", headers=self._headers)
            shown = json.loads(self._wire.getresponse().read())
            done = shown["lines"] >= 2 * len(names) and shown["lag_bytes"] == 0
            quiet = quiet + 1 if done else 0


@contextmanager
def pushed(folder: Path) -> Iterator[Bench]:
    """A server with its defaults but for quick announcements, and an app that nobody pushes to yet."""
    folder.mkdir()
    with (
        penstock(folder / "data", eventhorizon_activity_interval=0.5) as (server, target),
        Child("push_app", folder / "app.db", SUB) as app,
    ):
        bench = Bench(folder, server, target, app)
        try:
            yield bench
        finally:
            bench.close()
