"""CPU of a delivery, the ledger on: against a bare `socket.send` loop, and against nginx with nchan.

Every event is published when the one before has reached all wires, so each delivery is one write for
each of the three. With `--linger` it is about the opposite: how many deliveries share a write.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.rig import nchan, requests
from bench.rig.child import Child
from bench.rig.load import Target
from bench.rig.machine import cpu_seconds
from bench.rig.poster import Poster
from bench.rig.report import Figure, Report, arguments, median, of_floor, reporting, say, settle
from bench.rig.servers import penstock

LINGER = 0.02  # seconds for which events are gathered with --linger
SETTLE = 0.3  # seconds: longer than the ledger waits before it writes
STREAM = "/bench"


class WiresLost(Exception):
    """Not every wire got everything."""


@dataclass(slots=True)
class Subject:
    """A server, its wires, and how to have one event sent to all of them."""

    name: str
    pid: int
    wires: Child
    count: int
    publish: Callable[[], object] = lambda: None
    target: Target = field(default_factory=lambda: Target(0, 0))
    request: bytes = b""  # one publish
    unheard: bytes = b""  # one publish that nobody listens to
    sent: int = 0
    cpu_us: list[float] = field(default_factory=list)  # per delivery, of each round
    publish_us: list[float] = field(default_factory=list)  # of that, what publishing alone costs

    def arrive(self, events: int) -> None:
        """Wait until as many more events have reached every wire."""
        self.sent += events
        got = self.wires.ask(f"total {self.sent * self.count}")
        if got["lost"] or got["fewest"] != self.sent:
            raise WiresLost(f"{self.name}: {got} after {self.sent} events on {self.count} wires")


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("fanout", "CPU of one delivery.")
    parser.add_argument("--wires", type=int, help="open connections; 5000, or 200 with --linger")
    parser.add_argument("--events", type=int, default=20, help="events of a round")
    parser.add_argument("--gap", type=float, default=0.05, help="seconds between two events")
    parser.add_argument("--linger", action="store_true", help="500 events/s, gathered for 20 ms, instead")
    parser.add_argument("--rate", type=float, default=500, help="events/s with --linger")
    parser.add_argument("--seconds", type=float, default=4, help="of a round with --linger")
    given = parser.parse_args(argv)
    if given.quick:
        given.wires, given.events, given.gap, given.rounds, given.seconds, given.rate = 20, 3, 0.01, 1, 0.5, 100
    with reporting("fanout", given) as (report, folder):
        (_linger if given.linger else _one_write_each)(given, report, folder)
    return 0


# ── one write each ────────────────────────────────────────────────────────────────────────────────


def _one_write_each(given: argparse.Namespace, report: Report, folder: Path) -> None:
    count = given.wires or 5000
    with ExitStack() as stack:
        ours = stack.enter_context(_ours(folder, count))
        size = _delivery_bytes(ours)
        floor = stack.enter_context(_bare(folder, count, size))
        peer = stack.enter_context(_nchan(folder, count, size - 8)) if nchan.available() else None
        subjects = [subject for subject in (floor, ours, peer) if subject]
        for number in range(given.rounds):
            for subject in subjects:
                say(f"round {number + 1} of {given.rounds}: {subject.name}")
                settle(given)
                subject.cpu_us.append(_round(subject, given.events, given.gap))
    report_one_write_each(report, "one write each", ours, floor, peer)


def report_one_write_each(report: Report, name: str, ours: Subject, floor: Subject, peer: Subject | None) -> None:
    """Against the bare loop, and against nchan where it is installed: `bench sps` has the same marks."""
    for title, other, what, must, aim in (
        (name, floor, "bare socket.send loop", 1.2, 1.08),
        (f"{name} / nchan", peer, "nginx with nchan", 1.05, 1.0),
    ):
        if other:
            detail = {"wires": ours.count}
            report.add(of_floor(title, ours.cpu_us, "CPU µs/delivery", other.cpu_us, what, must, aim, detail))


def _round(subject: Subject, events: int, gap: float) -> float:
    """CPU µs of one delivery, with everything the server does for it, its ledger included."""
    before = cpu_seconds(subject.pid)
    for _ in range(events):
        subject.publish()
        subject.arrive(1)
        time.sleep(gap)
    time.sleep(SETTLE)
    return 1e6 * (cpu_seconds(subject.pid) - before) / (events * subject.count)


@contextmanager
def _ours(folder: Path, count: int, **settings: object) -> Iterator[Subject]:
    with penstock(folder / "data", **settings) as (server, target):
        request = requests.publish(STREAM, requests.event(), server.admin_token)
        file = requests.save(folder / "tail.json", requests.tail(STREAM, server.admin_token))
        with Poster(server.port, request) as poster, _wires(server.port, count, file) as wires:
            unheard = requests.publish("/nobody", requests.event(), server.admin_token)
            yield Subject("penstock", target.pid, wires, count, poster.post, target, request, unheard)


@contextmanager
def _bare(folder: Path, count: int, size: int) -> Iterator[Subject]:
    with Child("bare_send", count, size) as server:
        file = requests.save(folder / "bare.json", requests.tail(STREAM, "none"))
        with _wires(server.answer()["port"], count, file) as wires:
            server.answer()
            yield Subject("bare send", server.pid, wires, count, lambda: server.ask("send"))


@contextmanager
def _nchan(folder: Path, count: int, size: int) -> Iterator[Subject]:
    with nchan.running(folder / "nchan") as target:
        request = requests.post(nchan.PUBLISH, requests.event(size))
        file = requests.save(folder / "subscribe.json", requests.nchan_subscribe(nchan.SUBSCRIBE))
        with Poster(target.port, request) as poster, _wires(target.port, count, file) as wires:
            unheard = requests.post(nchan.PUBLISH_TO_NOBODY, requests.event(size))
            yield Subject("nchan", target.pid, wires, count, poster.post, target, request, unheard)


@contextmanager
def _wires(port: int, count: int, file: Path) -> Iterator[Child]:
    with Child("wires", port, count, file) as wires:
        wires.answer()
        yield wires


def _delivery_bytes(ours: Subject) -> int:
    """How many bytes one delivery of ours has, framing included: the others send as many."""
    head, _, body = ours.request.partition(b"\r\n\r\n")
    token = head.partition(b"Bearer ")[2].partition(b"\r\n")[0].decode()
    with socket.create_connection(("127.0.0.1", ours.target.port), timeout=20) as probe:
        probe.sendall(requests.tail(STREAM, token))
        while b"\r\n\r\n" not in probe.recv(4096):
            pass
        ours.publish()
        ours.arrive(1)
        size = len(probe.recv(4096))
    if size <= len(body):
        raise WiresLost(f"a delivery of {size} bytes cannot hold an event of {len(body)}")
    return size


# ── with a linger ─────────────────────────────────────────────────────────────────────────────────


def _linger(given: argparse.Namespace, report: Report, folder: Path) -> None:
    count, shared = given.wires or 200, max(1, round(given.rate * LINGER))
    with ExitStack() as stack:
        ours = stack.enter_context(_ours(folder, count, log_gather_ms=round(1000 * LINGER)))
        size = _delivery_bytes(ours)
        floor = stack.enter_context(_bare(folder, count, size * shared))
        prototype = stack.enter_context(Child("bare_publish", folder / "events.db", LINGER))
        floor.target, floor.unheard = Target(prototype.answer()["port"], prototype.pid), ours.unheard
        peer = stack.enter_context(_nchan(folder, count, size - 8)) if nchan.available() else None
        for number in range(given.rounds):
            for subject in (ours, floor, peer) if peer else (ours, floor):
                say(f"linger, round {number + 1} of {given.rounds}: {subject.name}")
                settle(given)
                subject.publish_us.append(_stream_through(subject, folder, given, heard=False))
                if subject is floor:
                    subject.cpu_us.append(subject.publish_us[-1] + _write_through(subject, shared, given))
                else:
                    subject.cpu_us.append(_stream_through(subject, folder, given, heard=True))
    report.add(_per_cpu_second("linger 20 ms", ours, peer, "nginx with nchan", given, must=4, aim=6))
    off = "linger 20 ms, publishing taken off"
    report.add(_per_cpu_second(off, ours, peer, "nginx with nchan", given, published=False))
    report.add(_per_cpu_second("linger 20 ms / bare", ours, floor, "bare prototype's publishes and bare writes", given))
    if peer:  # as far as a server could come that is written in Python, is durable and writes to each wire
        report.add(_per_cpu_second("linger 20 ms, bare, without a server", floor, peer, "nginx with nchan", given))


def _per_cpu_second(
    name: str, ours: Subject, other: Subject | None, what: str, given: argparse.Namespace, must: float | None = None,
    aim: float | None = None, *, published: bool = True,
) -> Figure:  # fmt: skip
    """Deliveries that one second of CPU makes. Only what includes publishing, durable as it is, is judged."""
    mine, others = ([1e6 / us for us in _costs(one, published=published)] if one else [] for one in (ours, other))
    detail = {"wires": ours.count, "rate": given.rate, "event_us": median(ours.cpu_us) * ours.count,
              "publish_us": median(ours.publish_us) * ours.count}  # fmt: skip
    return Figure(
        name, median(mine), "deliveries/CPU s", median(others) if others else None, what, must, aim,
        "ratio", True, median([a / b for a, b in zip(mine, others, strict=True)]) if others else None, detail,
    )  # fmt: skip


def _costs(subject: Subject, *, published: bool) -> list[float]:
    if published:
        return subject.cpu_us
    return [us - publishing for us, publishing in zip(subject.cpu_us, subject.publish_us, strict=True)]


def _stream_through(subject: Subject, folder: Path, given: argparse.Namespace, *, heard: bool) -> float:
    """CPU µs of one delivery while events come at a rate; unheard, what they cost without being delivered."""
    file = requests.save(folder / f"{subject.name}.json", subject.request if heard else subject.unheard)
    before = cpu_seconds(subject.target.pid)
    with Child("publishers", subject.target.port, 16, file, "rate", given.rate, given.seconds) as publishers:
        events: int = publishers.answer()["requests"]
    if heard:
        subject.arrive(events)
    time.sleep(SETTLE)
    return 1e6 * (cpu_seconds(subject.target.pid) - before) / (events * subject.count)


def _write_through(floor: Subject, shared: int, given: argparse.Namespace) -> float:
    """CPU µs of one delivery when so many share a bare write, at the same rate."""
    before, writes = cpu_seconds(floor.pid), max(1, int(given.seconds / LINGER))
    began = time.monotonic()
    for number in range(writes):
        time.sleep(max(0.0, began + number * LINGER - time.monotonic()))
        floor.publish()
        floor.arrive(1)
    return 1e6 * (cpu_seconds(floor.pid) - before) / (writes * shared * floor.count)
