"""Several workers on one machine: what their log process costs, and what they cost beside a single process.

CPU times are judged rather than rates: on two cores, which the load shares, more processes make nothing faster.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import idle
from bench.fanout import STREAM, Subject, WiresLost, _bare, _ours, _round
from bench.rig import requests
from bench.rig.child import Child
from bench.rig.load import Load, Target, generators, press
from bench.rig.machine import cpu_seconds, memory_kb
from bench.rig.poster import Poster
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import confirm, penstock
from penstock.testing import RunningServer

IN_FLIGHT = 256
WIRES_EACH = 16_500  # of one process of the rig, and about what a worker gets: below 20,000 open files


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("workers", "Several workers and their log process.")
    parser.add_argument("--seconds", type=float, default=2, help="of each round of publishes")
    parser.add_argument("--wires", type=int, default=5000, help="for deliveries and memory")
    parser.add_argument("--killed", type=int, default=8000, help="wires on four workers, of which one is killed")
    parser.add_argument("--crowd", type=int, default=0, help="wires that one event is to reach: 100000; else left out")
    given = parser.parse_args(argv)
    if given.quick:
        given.seconds, given.wires, given.killed, given.rounds = 0.3, 40, 80, 1
    with reporting("workers", given) as (report, folder):
        _publish(given, report, folder)
        _deliver(given, report, folder)
        _rest(given, report, folder)
        _kill(given, report, folder)
        if given.crowd:
            _reach(given, report, folder)
    return 0


def started(server: RunningServer, what: str) -> list[int]:
    """Processes of a machine, in the order in which they were ready."""
    return [int(pid) for pid in re.findall(rf"{what}.started.*pid=(\d+)", server.log_text())]


# ── publishing ────────────────────────────────────────────────────────────────────────────────────


def _publish(given: argparse.Namespace, report: Report, folder: Path) -> None:
    loads: list[Load] = []
    bare: list[Load] = []
    own: list[float] = []
    with (
        penstock(folder / "publish", server_workers=2) as (server, target),
        Child("bare_publish", folder / "bare.db") as prototype,
    ):
        request = requests.publish("/bench/append", requests.event(), server.admin_token)
        other, keeper = Target(prototype.answer()["port"], prototype.pid), started(server, "log_process")[0]
        generator = "own" if given.quick else generators()[0]
        for number in range(given.rounds):
            say(f"publish: round {number + 1} of {given.rounds}")
            settle(given)
            before = cpu_seconds(keeper)
            loads.append(press(generator, target, folder, [request], IN_FLIGHT, given.seconds))
            own.append(1e6 * (cpu_seconds(keeper) - before) / loads[-1].requests)
            bare.append(press(generator, other, folder, [request], IN_FLIGHT, given.seconds))
        confirm(server, "/bench/append", sum(load.requests for load in loads))
    ours, floor = [load.server_us for load in loads], [load.server_us for load in bare]
    detail = {"rate": median([load.rate for load in loads]), "prototype_rate": median([load.rate for load in bare]),
              "rounds": [round(us, 2) for us in own]}  # fmt: skip
    report.add(Figure(
        "log process, 256 in flight over 2 workers", median(own), "CPU µs/event", median(floor), "bare prototype",
        14, 9, detail=detail, generator=generator,
    ))  # fmt: skip
    ratio = median([us / other for us, other in zip(ours, floor, strict=True)])
    report.add(Figure(
        "publish, all processes of 2 workers", median(ours), "CPU µs/event", median(floor), "bare prototype", 1.8, 1.4,
        "ratio", ratio=ratio, detail={"rounds": [round(us, 2) for us in ours]}, generator=generator,
    ))  # fmt: skip


# ── delivering ────────────────────────────────────────────────────────────────────────────────────


def _deliver(given: argparse.Namespace, report: Report, folder: Path) -> None:
    events, gap = (3, 0.01) if given.quick else (20, 0.05)
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    with ExitStack() as stack:
        alone = stack.enter_context(_ours(folder / "one", given.wires))
        workers = stack.enter_context(_ours(folder / "two", given.wires, server_workers=2))
        for number in range(given.rounds):
            for subject in (alone, workers):
                say(f"deliver: round {number + 1} of {given.rounds}")
                settle(given)
                subject.cpu_us.append(_round(subject, events, gap))
    ratio = median([two / one for two, one in zip(workers.cpu_us, alone.cpu_us, strict=True)])
    report.add(Figure(
        "delivery, 2 workers", median(workers.cpu_us), "CPU µs/delivery", median(alone.cpu_us), "one process", 1.15,
        1.05, "ratio", ratio=ratio, detail={"wires": given.wires, "rounds": [round(us, 2) for us in workers.cpu_us],
                                             "one_process_rounds": [round(us, 2) for us in alone.cpu_us]},
    ))  # fmt: skip


# ── doing nothing ─────────────────────────────────────────────────────────────────────────────────


def _rest(given: argparse.Namespace, report: Report, folder: Path) -> None:
    floor = idle.bare_kb(folder, given.wires)
    for kind, streams in (("one stream", 1), ("a stream each", given.wires)):
        with penstock(folder / f"idle-{streams}", server_workers=2) as (server, target):
            asked = [requests.tail(f"/bench/{number}", server.admin_token) for number in range(streams)]
            file = requests.save(folder / "idle.json", *asked)
            with _open(server.port, idle.WARM, file):
                before = memory_kb(target.pid)
                with _open(server.port, given.wires, file):
                    each = (memory_kb(target.pid) - before) / given.wires
        report.add(Figure(
            f"idle wire, 2 workers, {kind}", each, "KB/wire", floor, "bare protocol object on uvloop", 4.5, 3.0,
            detail={"wires": given.wires},
        ))  # fmt: skip


@contextmanager
def _open(port: int, count: int, file: Path, *options: str) -> Iterator[Child]:
    with Child("wires", port, count, file, *options) as wires:
        wires.answer()
        yield wires


# ── one is killed ─────────────────────────────────────────────────────────────────────────────────


def _kill(given: argparse.Namespace, report: Report, folder: Path) -> None:
    seconds: list[float] = []
    floors: list[float] = []
    returned: list[int] = []
    workers = 2 if given.quick else 4
    with penstock(folder / "kill", server_workers=workers) as (server, _):
        file = requests.save(folder / "kill.json", requests.tail(STREAM, server.admin_token))
        request = requests.publish(STREAM, requests.event(), server.admin_token)
        for number in range(given.rounds):
            say(f"kill: round {number + 1} of {given.rounds}")
            settle(given)
            began = time.monotonic()
            with _open(server.port, given.killed // workers, file):
                floors.append(time.monotonic() - began)
            with _open(server.port, given.killed, file, "returns") as wires:
                killed = time.monotonic()
                os.kill(started(server, "worker")[number], signal.SIGKILL)
                back = wires.ask("settled 1")
                seconds.append(back["last"] - killed)
                returned.append(back["returned"])
                with Poster(server.port, request) as poster:
                    poster.post()
                got = wires.ask(f"total {given.killed}")
                if got["fewest"] < 1:
                    raise WiresLost(f"an event has not reached all wires after a kill: {got}")
    report.add(Figure(
        f"one of {workers} workers is killed: all wires are back", median(seconds), "s", median(floors),
        "as many wires opened one after the other", 5, 2, detail={"wires": given.killed, "returned": returned},
    ))  # fmt: skip


# ── a crowd ───────────────────────────────────────────────────────────────────────────────────────


def _reach(given: argparse.Namespace, report: Report, folder: Path) -> None:
    count = -(-given.crowd // WIRES_EACH)
    counts = [given.crowd // count + (number < given.crowd % count) for number in range(count)]
    (folder / "bare").mkdir()
    with _bare(folder / "bare", 1000, 300) as few:
        floor = min(_seconds(few) for _ in range(3)) * given.crowd / 1000 / len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        server, _ = stack.enter_context(penstock(folder / "crowd", server_workers=max(6, count)))
        file = requests.save(folder / "crowd.json", requests.tail(STREAM, server.admin_token))
        began = time.monotonic()
        crowd = [
            Child("wires", server.port, each, file, f"from=127.0.0.{number}") for number, each in enumerate(counts, 2)
        ]
        for wires in crowd:
            stack.enter_context(wires)
        for wires in crowd:
            wires.answer()
        opened, seconds = time.monotonic() - began, []
        with Poster(server.port, requests.publish(STREAM, requests.event(), server.admin_token)) as poster:
            for event in range(1, given.rounds + 1):
                settle(given)
                began = time.monotonic()
                for wires, each in zip(crowd, counts, strict=True):
                    wires.tell(f"total {event * each}")
                poster.post()
                for got in [wires.answer() for wires in crowd]:
                    if got["lost"] or got["fewest"] != event:
                        raise WiresLost(f"{got} after {event} events")
                seconds.append(time.monotonic() - began)
    report.add(Figure(
        f"one event reaches {given.crowd:,} wires", median(seconds), "s", floor, "bare sends on as many cores", 5, 2.5,
        detail={"wires": given.crowd, "workers": max(6, count), "opened_in": opened,
                "rounds": [round(one, 2) for one in seconds]},
    ))  # fmt: skip


def _seconds(subject: Subject) -> float:
    began = time.monotonic()
    subject.publish()
    subject.arrive(1)
    return time.monotonic() - began
