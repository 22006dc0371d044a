"""Web Push: memory of a user agent, notifications past the storage and through it, and a storm of reconnects.

Each against its floor in the same run: a bare protocol object, a listener that stores nothing, bare writes
with fdatasync, as many connections that nobody greets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec

from bench.rig import requests
from bench.rig.bare_disk import bare_syncs
from bench.rig.child import Child
from bench.rig.load import Load, Target, press
from bench.rig.machine import memory_kb
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from penstock.wire import vapid

BODY_BYTES = 200
SENDERS = 64
WARM = 50  # user agents before the first look: what is made once is not theirs


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("webpush", "User agents, notifications and reconnects of the Web Push door.")
    parser.add_argument("--agents", type=int, default=5000, help="user agents that are connected")
    parser.add_argument("--back", type=int, default=15_000, help="user agents that come back at once")
    parser.add_argument("--seconds", type=float, default=3, help="of each round of notifications")
    parser.add_argument("--only", choices=("idle", "direct", "stored", "storm"), help="one of them alone")
    given = parser.parse_args(argv)
    if given.quick:
        given.agents, given.back, given.seconds, given.rounds = 200, 200, 0.3, 1
    parts = {"idle": _idle, "direct": _direct, "stored": _stored, "storm": _storm}
    with reporting("webpush", given) as (report, folder):
        for name, part in parts.items():
            if given.only in (None, name):
                (folder / name).mkdir()
                part(given, report, folder / name)
    return 0


@contextmanager
def agents(port: int, folder: Path, count: int, name: str = "agents") -> Iterator[Child]:
    """User agents that are connected in the block; their endpoints are in NAME.endpoints."""
    with Child("agents", port, count, folder / f"{name}.uaids", folder / f"{name}.endpoints") as child:
        child.answer()
        yield child


def sends(folder: Path, *, authorization: str = "", name: str = "agents") -> list[bytes]:
    """A send to each endpoint."""
    headers = "TTL: 3600\r\nContent-Encoding: aes128gcm\r\n"
    headers += f"Authorization: {authorization}\r\n" if authorization else ""
    endpoints = (folder / f"{name}.endpoints").read_text().split()
    return [requests.post(urlsplit(endpoint).path, b"x" * BODY_BYTES, headers) for endpoint in endpoints]


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def _idle(given: argparse.Namespace, report: Report, folder: Path) -> None:
    say("memory of an idle user agent")
    with penstock(folder / "data") as (server, target), agents(server.port, folder, WARM, "warm"):
        before = memory_kb(target.pid)
        with agents(server.port, folder, given.agents):
            ours = (memory_kb(target.pid) - before) / given.agents
    file = requests.save(folder / "bare.json", requests.tail("/bench", "none"))
    with Child("bare_listener") as bare:
        port = bare.answer()["port"]
        with Child("wires", port, WARM, file) as warm:
            warm.answer()
            before = memory_kb(bare.pid)
            with Child("wires", port, given.agents, file) as wires:
                wires.answer()
                floor = (memory_kb(bare.pid) - before) / given.agents
    report.add(
        Figure(
            "idle user agent", ours, "KB/user agent", floor, "bare protocol object on uvloop", 9, 6.5,
            detail={"agents": given.agents},
        )
    )  # fmt: skip


# ── notifications ─────────────────────────────────────────────────────────────────────────────────


def _direct(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """To user agents that are connected and acknowledge at once: CPU of all of it, on one core."""
    with penstock(folder / "data") as (server, target), agents(server.port, folder, given.agents) as child:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = vapid.sign(key, origin="http://bench", exp=int(time.time()) + 3600, sub="mailto:bench@example.net")
        sent = 0
        for name, authorization, must, aim in (("no VAPID", "", 4000, 8000), ("VAPID, cached", signed, 3000, 6000)):
            loads, floors = [], []
            for number in range(given.rounds):
                say(f"direct, {name}: round {number + 1} of {given.rounds}")
                settle(given)
                floors.append(_bare(folder, given.seconds))
                made = sends(folder, authorization=authorization)
                loads.append(press("own", target, folder, made, SENDERS, given.seconds))
                sent += loads[-1].requests
                child.ask(f"total {sent}")
            report.add(_per_core(f"direct, {name}", loads, floors, must, aim, given.agents))


def _bare(folder: Path, seconds: float) -> Load:
    with Child("bare_listener") as bare:
        target = Target(bare.answer()["port"], bare.pid)
        return press("own", target, folder, [requests.post("/", b"x" * BODY_BYTES)], SENDERS, seconds)


def _per_core(name: str, loads: list[Load], floors: list[Load], must: float, aim: float, agents: int) -> Figure:
    ours, floor = (1e6 / median([load.server_us for load in many]) for many in (loads, floors))
    detail = {
        "agents": agents,
        "cpu_us": 1e6 / ours,
        "per_second": median([load.rate for load in loads]),
        "p99_ms": median([load.p99_ms for load in loads]),
    }
    return Figure(
        name, ours, "messages/s on one core", floor, "listener that stores nothing and tells nobody", must, aim,
        higher_is_better=True, detail=detail,
    )  # fmt: skip


def _stored(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """To user agents that are away: durable before the answer."""
    with penstock(folder / "data") as (server, target):
        with agents(server.port, folder, given.agents):
            made = sends(folder)
        loads, floors = [], []
        for number in range(given.rounds):
            say(f"stored: round {number + 1} of {given.rounds}")
            settle(given)
            floors.append(bare_syncs(folder, SENDERS, BODY_BYTES, given.seconds / 2).rate)
            loads.append(press("own", target, folder, made, SENDERS, given.seconds))
    detail = {
        "server_cpu_us": median([load.server_us for load in loads]),
        "server_cores": median([load.server_cpu / load.seconds for load in loads]),
        "neighbour_cores": median([load.neighbours for load in loads]),
        "p99_ms": median([load.p99_ms for load in loads]),
    }
    report.add(
        Figure(
            "stored, 64 senders", median([load.rate for load in loads]), "messages/s", median(floors),
            "write and fdatasync, 64 a group", 4000, 8000, higher_is_better=True, detail=detail,
        )
    )  # fmt: skip


# ── the storm ─────────────────────────────────────────────────────────────────────────────────────


def _storm(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """Every user agent has a message waiting; all come back at once. Served is who has its message."""
    seconds, floors = [], []
    with (
        penstock(folder / "data", server_connections=given.back + 1000) as (server, target),
        agents(server.port, folder, given.back) as child,
    ):
        for number in range(given.rounds):
            say(f"storm, round {number + 1} of {given.rounds}")
            floors.append(_bare_storm(folder, given.back))
            seconds.append(_one_storm(target, folder, child, given.back))
    report.add(
        Figure(
            "reconnects served", median([whole for whole, _ in seconds]), "s", median(floors),
            "connections opened, nobody greeted", 40, 20,
            detail={"agents": given.back, "hello_seconds": median([hello for _, hello in seconds])},
        )
    )  # fmt: skip


def _one_storm(target: Target, folder: Path, child: Child, count: int) -> tuple[float, float]:
    file = requests.save(folder / "sends.json", *sends(folder))
    child.ask("leave 0")
    with Child("publishers", target.port, SENDERS, file, "total", count) as publishers:
        publishers.answer()
    got = child.ask("back 1")
    return got["seconds"], got["hello_seconds"]


def _bare_storm(folder: Path, count: int) -> float:
    file = requests.save(folder / "bare.json", requests.tail("/bench", "none"))
    with Child("bare_listener") as bare:
        port = bare.answer()["port"]
        began = time.perf_counter()
        with Child("wires", port, count, file) as wires:
            wires.answer()
            return time.perf_counter() - began
