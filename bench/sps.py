"""sps: memory of a wire, CPU of a delivery, how late an event is, and a storm of reconnects.

Each against its floor in the same run: a bare protocol object, a bare `socket.send` loop and nginx with nchan, a
listener that stores nothing, one that answers everybody from memory.
"""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from bench import fanout
from bench.rig import nchan, requests
from bench.rig.child import Child
from bench.rig.load import Target
from bench.rig.machine import cpu_seconds, memory_kb
from bench.rig.poster import Poster
from bench.rig.report import Figure, Report, arguments, median, of_floor, reporting, say, settle
from bench.rig.servers import fill, penstock
from penstock.testing import RunningServer

ROOM = "bench"
STREAM = f"/rooms/{ROOM}"
WARM = 50  # wires before the first look: what is made once is not the wires'
DELIVERY_BYTES = 280  # about what an event of 200 bytes is as a line in a chunk
GAP = 0.05  # seconds between two events


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("sps", "Wires, deliveries and storms of the sps door.")
    parser.add_argument("--wires", type=int, default=5000)
    parser.add_argument("--held", type=int, default=19_000, help="wires that are held at once")
    parser.add_argument("--events", type=int, default=20, help="events of a round of fan-out")
    parser.add_argument("--seconds", type=float, default=4, help="of a round of latency")
    parser.add_argument("--only", choices=("idle", "fanout", "latency", "storm", "held"), help="one of them alone")
    given = parser.parse_args(argv)
    if given.quick:
        given.wires, given.held, given.events, given.seconds, given.rounds = 500, 200, 3, 0.3, 1
    parts = {"idle": _idle, "fanout": _fanout, "latency": _latency, "storm": _storm, "held": _held}
    with reporting("sps", given) as (report, folder):
        for name, part in parts.items():
            if given.only in (None, name):
                (folder / name).mkdir()
                part(given, report, folder / name)
    return 0


def subscribe(server: RunningServer, user: int, after: int | None = None) -> bytes:
    """A wire of a user of its own, in the room."""
    resume = "" if after is None else f"&o={after}"
    return (
        f"GET /subscribe?uid={user}&tid={ROOM}{resume} HTTP/1.1\r\nHost: bench\r\n"
        f"Authorization: Bearer {server.admin_token}\r\n\r\n"
    ).encode()


def _requests(server: RunningServer, folder: Path, first: int, count: int, after: int | None = None) -> Path:
    made = [subscribe(server, user, after) for user in range(first, first + count)]
    return requests.save(folder / f"subscribe-{first}-{after}.json", *made)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def _idle(given: argparse.Namespace, report: Report, folder: Path) -> None:
    say("memory of an idle wire")
    with penstock(folder / "data") as (server, target):
        ours = _kb_each(target, *(_requests(server, folder, first, n) for first, n in ((1, WARM), (1000, given.wires))))
    bare_file = requests.save(folder / "bare.json", requests.tail(STREAM, "none"))
    with Child("bare_listener") as bare:
        floor = _kb_each(Target(bare.answer()["port"], bare.pid), bare_file, bare_file, given.wires)
    report.add(
        Figure(
            "idle wire",
            ours,
            "KB/wire",
            floor,
            "bare protocol object on uvloop",
            3.5,
            2.5,
            detail={"wires": given.wires},
        )
    )


def _kb_each(target: Target, warm: Path, file: Path, count: int | None = None) -> float:
    count = count or len(requests.load(file))
    with Child("wires", target.port, WARM, warm) as first:
        first.answer()
        before = memory_kb(target.pid)
        with Child("wires", target.port, count, file) as wires:
            wires.answer()
            return (memory_kb(target.pid) - before) / count


def _held(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """Hold as many as the machine lets one process hold, and reach all of them with one event."""
    say(f"holding {given.held} wires")
    with penstock(folder / "data", server_connections=given.held + 100) as (server, target):
        before = memory_kb(target.pid)
        with Child("wires", server.port, given.held, _requests(server, folder, 1, given.held)) as wires:
            wires.answer()
            kb = (memory_kb(target.pid) - before) / given.held
            with Poster(server.port, requests.publish("/all", requests.event(), server.admin_token)) as poster:
                poster.post()
            got = wires.ask(f"total {given.held}")
    reached = got["total"] if got["fewest"] == 1 else 0
    report.add(
        Figure(
            "wires held and reached", float(reached), "wires", float(given.held), "wires opened", 19_000, 19_000,
            higher_is_better=True, detail={"kb_each": kb},
        )
    )  # fmt: skip


# ── fan-out ───────────────────────────────────────────────────────────────────────────────────────


def _fanout(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """An event is published when the one before has reached all wires: one write for each delivery."""
    with ExitStack() as stack:
        ours = stack.enter_context(_subscribed(given, folder))
        floor = stack.enter_context(fanout._bare(folder, given.wires, DELIVERY_BYTES))
        installed = nchan.available()
        peer = stack.enter_context(fanout._nchan(folder, given.wires, DELIVERY_BYTES - 8)) if installed else None
        for number in range(given.rounds):
            for subject in filter(None, (floor, ours, peer)):
                say(f"fan-out, round {number + 1} of {given.rounds}: {subject.name}")
                settle(given)
                subject.cpu_us.append(fanout._round(subject, given.events, GAP))
    fanout.report_one_write_each(report, "fan-out, one write each", ours, floor, peer)


@contextmanager
def _subscribed(given: argparse.Namespace, folder: Path) -> Iterator[fanout.Subject]:
    with penstock(folder / "data") as (server, target):
        publish = requests.publish(STREAM, requests.event(), server.admin_token)
        with (
            Poster(server.port, publish) as poster,
            Child("wires", server.port, given.wires, _requests(server, folder, 1, given.wires)) as wires,
        ):
            wires.answer()
            yield fanout.Subject("penstock", target.pid, wires, given.wires, poster.post, target, publish)


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


def _latency(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """1,000 events/s to 100 wires, each timed from when it was due to its arrival at one of them."""
    rate, others = 1000.0, 99
    ours: list[HdrHistogram] = []
    floors: list[HdrHistogram] = []
    with penstock(folder / "data") as (server, target):
        publish = requests.save(folder / "publish.json", requests.publish(STREAM, requests.event(), server.admin_token))
        reader = requests.save(folder / "reader.json", subscribe(server, 1_000_000))
        file = _requests(server, folder, 1, others)
        for number in range(given.rounds):
            say(f"latency, round {number + 1} of {given.rounds}")
            settle(given)
            with Child("bare_listener") as bare:
                port = bare.answer()["port"]
                with Child("wires", port, others, file) as wires:
                    wires.answer()
                    floors.append(_late(port, folder, publish, reader, rate, given.seconds))
            with Child("wires", target.port, others, file) as wires:
                wires.answer()
                ours.append(_late(target.port, folder, publish, reader, rate, given.seconds))
    for percentile, must, aim in ((50.0, None, None), (99.0, 10.0, 5.0)):
        value, floor = (
            median([one.get_value_at_percentile(percentile) / 1000 for one in many]) for many in (ours, floors)
        )
        detail = {"events_per_second": rate, "wires": others + 1}
        name = f"publish to receive, p{percentile:g}"
        report.add(Figure(name, value, "ms", floor, "listener that stores nothing", must, aim, detail=detail))


def _late(port: int, folder: Path, publish: Path, reader_file: Path, rate: float, seconds: float) -> HdrHistogram:
    late, events = folder / "late", int(rate * seconds)
    with Child("reader", port, reader_file, events, late) as reader:
        reader.answer()  # it listens; only now may the first event come
        with Child("publishers", port, 64, publish, "rate", rate, seconds) as publishers:
            publishers.answer()
            reader.answer()
    histogram = HdrHistogram(1, 60_000_000, 3)
    for nanoseconds in array("q", late.read_bytes()):
        histogram.record_value(nanoseconds // 1000)
    return histogram


# ── the storm ─────────────────────────────────────────────────────────────────────────────────────

MISSED = 100  # events that each client comes back for
PUBLISHERS, RATE = 64, 200.0  # connections that publish meanwhile, and events/s of all of them


@dataclass(frozen=True, slots=True)
class Stormed:
    """One storm: until all had caught up, and how long somebody waited meanwhile who publishes."""

    seconds: float
    publish_ms: float  # p99, from when each was due
    cpu: float  # seconds of the server's


def _storm(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """All wires break, 100 events come, all come back; somebody publishes all the time. The same over a kill -9."""
    ours: list[Stormed] = []
    killed: list[Stormed] = []
    floors: list[Stormed] = []
    with penstock(folder / "data") as (server, _):
        for number in range(given.rounds):
            say(f"storm, round {number + 1} of {given.rounds}")
            for storms in (ours, killed):
                after = _break_all(given, server, folder)
                if storms is killed:
                    server.kill()
                    server.restart()
                settle(given)
                file = _requests(server, folder, 1, given.wires, after)
                storms.append(_caught_up(Target(server.port, server.process.pid), server, folder, file))
            settle(given)
            with Child("bare_replay", DELIVERY_BYTES, MISSED) as bare:
                floors.append(_caught_up(Target(bare.answer()["port"], bare.pid), server, folder, file))
    _report_storms(report, "storm", ours, floors, given.wires)
    _report_storms(report, "storm after kill -9", killed, floors, given.wires)


def _report_storms(report: Report, name: str, ours: list[Stormed], floors: list[Stormed], wires: int) -> None:
    seconds, floor = (median([one.seconds for one in many]) for many in (ours, floors))
    rounds = [round(one.seconds, 2) for one in ours]
    detail = {"clients": wires, "events_each": MISSED, "rounds": rounds, "cpu": median([one.cpu for one in ours])}
    report.add(
        Figure(f"{name} caught up", seconds, "s", floor, "listener that answers from memory", 5, 3, detail=detail)
    )
    cost, floor = (1e6 * median([one.cpu for one in many]) / wires for many in (ours, floors))
    title = f"{name}, CPU of one that comes back"
    report.add(Figure(title, cost, "CPU µs/wire", floor, "listener that answers from memory", detail=detail))
    waited, bare = ([one.publish_ms for one in many] for many in (ours, floors))
    detail = {"events_per_second": RATE}
    title, of = f"publish meanwhile, p99 ({name})", "the same storm on it"
    report.add(Figure(title, median(waited), "ms", median(bare), of, 100, 50, detail=detail))
    report.add(of_floor(f"{title} / bare", waited, "ms", bare, of, 5, 3, detail))


def _break_all(given: argparse.Namespace, server: RunningServer, folder: Path) -> int:
    """Open all wires, cut them and publish what they miss; return the id after which that is."""
    with Child("wires", server.port, given.wires, _requests(server, folder, 1, given.wires)) as wires:
        wires.answer()
    with Poster(server.port, requests.publish("/bench/other", requests.event(), server.admin_token)) as poster:
        after: int = poster.post()["id"]
    fill(server, folder, MISSED, STREAM)
    return after


def _caught_up(target: Target, server: RunningServer, folder: Path, file: Path) -> Stormed:
    """Let the storm go once the publishers are at work: they are measured from its beginning to its end."""
    other = requests.save(folder / "other.json", requests.publish("/bench/other", requests.event(), server.admin_token))
    with (
        Child("storm", target.port, file, MISSED) as storm,
        Child("publishers", target.port, PUBLISHERS, other, "meanwhile", RATE) as publishers,
    ):
        for child in (storm, publishers):
            child.answer()
        cpu = cpu_seconds(target.pid)
        publishers.tell("begin")
        seconds: float = storm.ask("go")["seconds"]
        cpu = cpu_seconds(target.pid) - cpu
        return Stormed(seconds, publishers.ask("end")["p99_ms"], cpu)
