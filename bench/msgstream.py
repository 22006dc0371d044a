"""The message stream: memory of an idle session, how late a pack is, and polls without news.

Each against its floor in the same run: a bare protocol object that holds a connection, or does the same exchange
without sessions, packs, checks and a disk.
"""

from __future__ import annotations

import argparse
import json
from array import array
from pathlib import Path

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.machine import cpu_seconds, memory_kb
from bench.rig.poster import Poster
from bench.rig.report import Figure, Report, arguments, median, of_floor, reporting, say, settle
from bench.rig.servers import penstock
from penstock.client.api import Client
from penstock.testing import RunningServer, wait_until

WARM = 50  # sessions before the first look: what is made once is not theirs
_UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("msgstream", "Sessions, packs and polls of the message stream.")
    parser.add_argument("--idle", type=int, default=4000, help="idle connections of each kind")
    parser.add_argument("--sessions", type=int, default=1000, help="sessions that packs are emitted to")
    parser.add_argument("--rate", type=float, default=1000, help="packs a second")
    parser.add_argument("--seconds", type=float, default=5, help="of a round of latency or polls")
    parser.add_argument("--only", choices=("idle", "latency", "polls"), help="one of them alone")
    given = parser.parse_args(argv)
    if given.quick:
        given.idle, given.sessions, given.rate, given.seconds, given.rounds = 100, 50, 100, 0.3, 1
    with reporting("msgstream", given) as (report, folder):
        for name, part in (("idle", _idle), ("latency", _latency), ("polls", _polls)):
            if given.only in (None, name):
                (folder / name).mkdir()
                part(given, report, folder / name)
    return 0


def _login(server: RunningServer, first: int, count: int) -> list[str]:
    """Begin sessions; returns their keys."""
    with Client(server.url, server.admin_token) as client:
        names = [f"session{number}" for number in range(first, first + count)]
        bodies = [json.dumps({"actorId": name, "ttl": 3600}).encode() for name in names]
        return [client.call("POST", "/v1/sessions", body=body)["sessionKey"] for body in bodies]


def _ask(key: str, transport: str) -> bytes:
    """A client's request for its stream."""
    upgrade = _UPGRADE if transport == "websocket" else ""
    return f"GET /msgstream?sessionKey={key}&transport={transport} HTTP/1.1\r\nHost: bench\r\n{upgrade}\r\n".encode()


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def _idle(given: argparse.Namespace, report: Report, folder: Path) -> None:
    bare_file = requests.save(folder / "bare.json", requests.tail("/bench", "none"))
    with Child("bare_listener") as bare:
        port = bare.answer()["port"]
        with Child("wires", port, WARM, bare_file) as warm:
            warm.answer()
            before = memory_kb(bare.pid)
            with Child("wires", port, given.idle, bare_file) as wires:
                wires.answer()
                floor = (memory_kb(bare.pid) - before) / given.idle
    for transport, name, must, aim in (
        ("longpolling", "idle long poll", 5, 3),
        ("websocket", "idle WebSocket", 8, 6),
    ):
        say(name)
        kb = _kb_each(given, folder, transport)
        detail = {"connections": given.idle}
        report.add(Figure(name, kb, "KB/session", floor, "bare protocol object on uvloop", must, aim, detail=detail))


def _kb_each(given: argparse.Namespace, folder: Path, transport: str) -> float:
    with penstock(folder / f"data-{transport}", msgstream_heartbeat=600) as (server, _):
        first, rest = (
            requests.save(folder / f"{transport}-{begin}.json", *[_ask(key, transport) for key in keys])
            for begin, keys in ((0, _login(server, 0, WARM)), (WARM, _login(server, WARM, given.idle)))
        )
        server.restart()  # nothing is known of the sessions: they are weighed with their connections
        pid = server.process.pid
        with Child("sessions", "hold", server.port, first) as warm:
            warm.answer()
            _wait_for(server, WARM)
            before = memory_kb(pid)
            with Child("sessions", "hold", server.port, rest) as held:
                held.answer()
                _wait_for(server, WARM + given.idle)
                return (memory_kb(pid) - before) / given.idle


def _wait_for(server: RunningServer, sessions: int) -> None:
    with Client(server.url, server.admin_token) as client:
        wanted = f"penstock_sessions_connected {sessions}"
        wait_until(lambda: wanted in client.send("GET", "/metrics").decode().replace(".0\n", "\n"), within=60)


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


def _emit(number: int, token: str) -> bytes:
    wanted = b'{"actors":["session%d"],"messages":[["bench",%b]]}' % (number, requests.event())
    return requests.post("/v1/emit", wanted, f"Authorization: Bearer {token}\r\n")


def _latency(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """Packs at a rate, over sessions that confirm each; timed from when each was due to its arrival."""
    ours: list[HdrHistogram] = []
    floors: list[HdrHistogram] = []
    with penstock(folder / "data") as (server, _):
        keys = _login(server, 0, given.sessions)
        listen = requests.save(folder / "listen.json", *[_ask(key, "websocket") for key in keys])
        emits = requests.save(
            folder / "emit.json", *[_emit(number, server.admin_token) for number in range(given.sessions)]
        )
        for number in range(given.rounds):
            say(f"latency, round {number + 1} of {given.rounds}")
            settle(given)
            with Child("bare_sessions") as bare:
                floors.append(_late(bare.answer()["port"], folder, listen, emits, given))
            ours.append(_late(server.port, folder, listen, emits, given))
    detail = {"packs_per_second": given.rate, "sessions": given.sessions}
    of = "relay that stores nothing"
    for percentile, must, aim in ((50.0, None, None), (99.0, 15.0, 5.0)):
        late, bare = ([one.get_value_at_percentile(percentile) / 1000 for one in many] for many in (ours, floors))
        name = f"emit to receive, p{percentile:g}"
        report.add(Figure(name, median(late), "ms", median(bare), of, must, aim, detail=detail))
    report.add(of_floor(f"{name} / relay", late, "ms", bare, of, 6, 3, detail))


def _late(port: int, folder: Path, listen: Path, emits: Path, given: argparse.Namespace) -> HdrHistogram:
    late, packs = folder / "late", int(given.rate * given.seconds)
    with Child("sessions", "listen", port, listen, packs, late) as listening:
        listening.answer()
        with Child("sessions", "emit", port, emits, given.rate, given.seconds) as emitting:
            emitting.answer()
            listening.answer()
    histogram = HdrHistogram(1, 60_000_000, 3)
    for nanoseconds in array("q", late.read_bytes()):
        histogram.record_value(max(1, nanoseconds // 1000))
    return histogram


# ── polls ─────────────────────────────────────────────────────────────────────────────────────────


def _polls(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """Short polls without news, on 64 connections, by as many sessions as there are."""
    ours: list[float] = []
    floors: list[float] = []
    server_us: list[float] = []
    with penstock(folder / "data") as (server, target), Child("bare_sessions") as bare:
        bare_port = bare.answer()["port"]
        keys = _login(server, 0, min(64, given.sessions))
        file = requests.save(folder / "poll.json", *[_ask(key, "shortpolling") for key in keys])
        with Poster(server.port, requests.publish("/bench/other", requests.event(), server.admin_token)) as poster:
            poster.post()  # something happens, but not for them
        for number in range(given.rounds):
            say(f"polls, round {number + 1} of {given.rounds}")
            settle(given)
            floors.append(_rate(bare_port, file, given.seconds)[0])
            before = cpu_seconds(target.pid)
            rate, polls = _rate(server.port, file, given.seconds)
            server_us.append(1e6 * (cpu_seconds(target.pid) - before) / polls)
            ours.append(rate)
    detail = {"server_us": median(server_us), "rounds": [round(rate) for rate in ours]}
    report.add(
        Figure(
            "short polls without news", median(ours), "polls/s", median(floors), "bare answer on uvloop", 8000, 15_000,
            higher_is_better=True, detail=detail,
        )
    )  # fmt: skip


def _rate(port: int, file: Path, seconds: float) -> tuple[float, int]:
    with Child("sessions", "poll", port, file, 64, seconds) as child:
        got = child.answer()
    return got["polls"] / got["seconds"], got["polls"]
