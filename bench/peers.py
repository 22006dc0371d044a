"""Penstock beside other push servers: the same payload, the same machine, their rounds in turn.

Whoever is not installed is left out. Each peer runs with the durability and the protocol that stand beside its figure:
one that keeps messages in memory does less than one that has them on disk before it answers.

    fan-out            CPU of one delivery to one of many wires
    idle               memory of the server for one more wire
    durable publish    an event that is synced to disk when it is answered; CPU of the server, and events a second
    replay             one reader that catches up from the start
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.rig import peers, requests
from bench.rig.child import Child
from bench.rig.load import press
from bench.rig.machine import cpu_seconds, memory_kb
from bench.rig.peers import Peer
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import fill, penstock

SETTLE = 0.3  # seconds: longer than the ledger waits before it writes
STREAM = "/bench"
WARM = 50  # wires before the first look at memory: what is made once is not theirs
FAN_OUT, IDLE = ("nchan", "mosquitto", "nats"), ("nchan", "mosquitto")
DURABLE = REPLAY = ("nats", "redis")
IN_FLIGHT = (64, 256)
PARTS = ("fan-out", "idle", "publish", "replay")
LEAST_BYTES, MOST_BYTES = 64, 64 * 1024  # room for the mark and its time; what each of them takes as it is configured
PIPELINED = 1000  # events that are stored for a replay with one write, before their answers are read
OURS = {
    "durable publish": f"HTTP, {peers.SYNCED}",
    "fan-out": "HTTP, chunked, on disk before it goes out, deliveries recorded",
    "idle": "HTTP, chunked, nothing is delivered",
    "replay": "HTTP, chunked, from disk, deliveries recorded",
}
"""What Penstock does for a figure, as `floor_of` says it of a peer."""
Marks = dict[str, tuple[float, float]]  # must and aim of the ratio, by peer


class WiresLost(Exception):
    """Not every wire got everything."""


@dataclass(slots=True)
class Measured:
    """One server's figures of one discipline, a round each."""

    peer: Peer
    rounds: list[float] = field(default_factory=list)
    more: list[float] = field(default_factory=list)  # a second figure of the same rounds


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("peers", "Penstock beside other push servers.")
    parser.add_argument("--wires", type=int, default=5000, help="open connections for fan-out and idle")
    parser.add_argument("--events", type=int, default=20, help="events of a round of fan-out")
    parser.add_argument("--seconds", type=float, default=2, help="of a round of durable publishes")
    parser.add_argument("--replayed", type=int, default=300_000, help="events of a replay")
    parser.add_argument("--bytes", type=int, default=requests.EVENT_BYTES, help="of an event's payload")
    parser.add_argument("--only", default="", metavar="NAME,…", help="of these peers: nchan, mosquitto, nats, redis")
    parser.add_argument("--part", choices=PARTS, action="append", help="this part, and no other; may be repeated")
    given = parser.parse_args(argv)
    if not LEAST_BYTES <= given.bytes <= MOST_BYTES:
        parser.error(f"--bytes has to be {LEAST_BYTES} to {MOST_BYTES:,}")
    if given.quick:
        given.wires, given.events, given.seconds, given.replayed, given.rounds = 20, 3, 0.3, 2000, 1
    there = {name: run for name, run in peers.installed().items() if not given.only or name in given.only.split(",")}
    with reporting("peers", given) as (report, folder):
        for part in given.part or PARTS:
            measure, names = {
                "fan-out": (_fan_out, FAN_OUT), "idle": (_idle, IDLE), "publish": (_durable, DURABLE),
                "replay": (_replay, REPLAY),
            }[part]  # fmt: skip
            (place := folder / part).mkdir(exist_ok=True)
            measure(given, report, place, {name: there[name] for name in names if name in there})
    return 0


@contextmanager
def _ours(folder: Path, event: bytes) -> Iterator[Peer]:
    with penstock(folder) as (server, target):
        yield Peer(
            "Penstock", "", "HTTP, chunked", target, peers.SYNCED, peers.SYNCED,
            subscribe=requests.tail(STREAM, server.admin_token), subscribed=b"\r\n\r\n",
            publish=requests.publish(STREAM, event, server.admin_token), published=b"HTTP/1.1 20",
            append=requests.publish("/bench/append", event, server.admin_token),
        )  # fmt: skip


@contextmanager
def _running(folder: Path, starts: dict[str, peers.Start], event_bytes: int) -> Iterator[list[Measured]]:
    """Penstock first, then its peers."""
    event = requests.event(event_bytes)
    with ExitStack() as stack:
        ours = Measured(stack.enter_context(_ours(folder / "penstock", event)))
        yield [ours, *(Measured(stack.enter_context(run(folder / name, event))) for name, run in starts.items())]


def _compare(
    given: argparse.Namespace, report: Report, what: str, unit: str, measured: list[Measured], marks: Marks,
    *, higher: bool = False,
) -> None:  # fmt: skip
    """One figure a peer: ours, theirs, and the median of the rounds' ratios. Marks are for events of the usual size."""
    ours, *others = measured
    usual = given.bytes == requests.EVENT_BYTES
    size = "" if usual else f", {given.bytes:,} bytes"
    for other in others:
        peer = other.peer
        must, aim = marks.get(peer.name, (None, None)) if usual else (None, None)
        ratios = [one / their for one, their in zip(ours.rounds, other.rounds, strict=True) if their]
        where = peer.delivers if what in ("fan-out", "idle") else peer.keeps
        report.add(
            Figure(
                f"{what}{size} / {peer.name}", median(ours.rounds), unit, median(other.rounds),
                f"{peer.name} {peer.version}, {peer.protocol}, {where}", must, aim, "ratio", higher,
                median(ratios) if ratios else None,
                {"rounds": ours.rounds, "peer_rounds": other.rounds, "more": ours.more, "peer_more": other.more},
            )
        )  # fmt: skip


# ── fan-out ───────────────────────────────────────────────────────────────────────────────────────


class Sender:
    """A connection that publishes one event at a time."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._socket = socket.create_connection(("127.0.0.1", peer.target.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if peer.greeting:
            self._socket.sendall(peer.greeting.replace(b"{n}", b"0"))
            self._wait(peer.greeted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def publish(self) -> None:
        """Send it, and wait for the answer if there is one."""
        self._socket.sendall(self._peer.publish)
        if self._peer.published:
            self._wait(self._peer.published)

    def store(self, events: int) -> None:
        """Have as many appended, many under way at a time. One by one a busy machine takes minutes to fill NATS."""
        for begun in range(0, events, PIPELINED):
            count = min(PIPELINED, events - begun)
            self._socket.sendall(self._peer.append.replace(b"{n}", b"0") * count)
            answers = self._wait(b"\r\n", 2 * count)  # each has two line ends (`askers`)
            if answers.startswith(b"-") or b'"error"' in answers:
                raise WiresLost(f"{self._peer.name} answered with {answers[:200]!r}")

    def _wait(self, end: bytes, times: int = 1) -> bytes:
        received = b""
        while received.count(end) < times:
            if not (piece := self._socket.recv(65_536)):
                raise WiresLost(f"{self._peer.name} closed after {received[:200]!r}")
            received += piece
        return received


@contextmanager
def _wires(peer: Peer, count: int, folder: Path) -> Iterator[Child]:
    file = requests.save(folder / f"{peer.target.port}.json", peer.subscribe)
    with Child("wires", peer.target.port, count, file, f"until={peer.subscribed.hex()}") as wires:
        wires.answer()
        yield wires


def _fan_out(given: argparse.Namespace, report: Report, folder: Path, starts: dict[str, peers.Start]) -> None:
    """All get frames of the same size: ours have a few more bytes around the event than theirs."""
    with _running(folder, starts, given.bytes) as [ours, *others], ExitStack() as stack:
        opened = [
            (one, stack.enter_context(Sender(one.peer)), stack.enter_context(_wires(one.peer, given.wires, folder)))
            for one in (ours, *others)
        ]
        sent = 0
        for number in range(given.rounds):
            for one, sender, wires in opened:
                say(f"fan-out, round {number + 1} of {given.rounds}: {one.peer.name}")
                settle(given)
                one.rounds.append(_deliver(one.peer, sender, wires, sent, given))
            sent += given.events
        _compare(given, report, "fan-out", "CPU µs/delivery", [ours, *others], {"nchan": (1.05, 1.0)})


def _deliver(peer: Peer, sender: Sender, wires: Child, sent: int, given: argparse.Namespace) -> float:
    before = cpu_seconds(peer.target.pid)
    for number in range(sent + 1, sent + given.events + 1):
        sender.publish()
        got = wires.ask(f"total {number * given.wires}")
        if got["lost"] or got["fewest"] != number:
            raise WiresLost(f"{peer.name}: {got} after {number} events on {given.wires} wires")
        time.sleep(0 if given.quick else 0.05)
    time.sleep(SETTLE)
    return 1e6 * (cpu_seconds(peer.target.pid) - before) / (given.events * given.wires)


# ── idle ──────────────────────────────────────────────────────────────────────────────────────────


def _idle(given: argparse.Namespace, report: Report, folder: Path, starts: dict[str, peers.Start]) -> None:
    """All are started anew for each round: what wires have left is not given back, and would serve the next ones."""
    measured: list[Measured] = []
    for number in range(given.rounds):
        (place := folder / str(number)).mkdir()
        with _running(place, starts, given.bytes) as running:
            measured = measured or running
            for one, now in zip(measured, running, strict=True):
                say(f"idle, round {number + 1} of {given.rounds}: {one.peer.name}")
                one.rounds.append(_kb_each(now.peer, given.wires, place))
    _compare(given, report, "idle", "KB/wire", measured, {})


def _kb_each(peer: Peer, count: int, folder: Path) -> float:
    with _wires(peer, WARM, folder):
        before = memory_kb(peer.target.pid)
        with _wires(peer, count, folder):
            return (memory_kb(peer.target.pid) - before) / count


# ── durable publish ───────────────────────────────────────────────────────────────────────────────


def _durable(given: argparse.Namespace, report: Report, folder: Path, starts: dict[str, peers.Start]) -> None:
    for in_flight in IN_FLIGHT:
        place = folder / str(in_flight)
        place.mkdir()
        with _running(place, starts, given.bytes) as [ours, *others]:
            for number in range(given.rounds):
                for one in (ours, *others):
                    say(f"durable publish, {in_flight} in flight, round {number + 1}: {one.peer.name}")
                    settle(given)
                    rate, cpu_us = _append(one.peer, in_flight, given.seconds, place)
                    one.rounds.append(rate)
                    one.more.append(cpu_us)
            what = f"durable publish, {in_flight} in flight"
            _compare(given, report, what, "events/s", [ours, *others], {}, higher=True)
            cpu = [replace(one, rounds=one.more, more=[]) for one in (ours, *others)]
            _compare(given, report, f"{what}, CPU", "CPU µs/event", cpu, {})


def _append(peer: Peer, in_flight: int, seconds: float, folder: Path) -> tuple[float, float]:
    if not peer.greeting:
        load = press("own", peer.target, folder, [peer.append], in_flight, seconds)
        return load.rate, load.server_us
    file = requests.save(folder / "append.json", peer.greeting, peer.greeted, peer.append)
    before = cpu_seconds(peer.target.pid)
    with Child("askers", peer.target.port, in_flight, file, "seconds", seconds) as askers:
        got = askers.answer()
    return got["requests"] / got["seconds"], 1e6 * (cpu_seconds(peer.target.pid) - before) / got["requests"]


# ── replay ────────────────────────────────────────────────────────────────────────────────────────


def _replay(given: argparse.Namespace, report: Report, folder: Path, starts: dict[str, peers.Start]) -> None:
    with ExitStack() as stack:
        server, target = stack.enter_context(penstock(folder / "penstock"))
        say(f"replay, storing {given.replayed:,} events: Penstock")
        fill(server, folder, given.replayed, STREAM, given.bytes)
        tail = requests.save(folder / "tail.json", requests.tail(STREAM, server.admin_token, after=0))
        ours = Measured(Peer("Penstock", "", "HTTP, chunked", target))
        others = [Measured(stack.enter_context(_filled(name, folder, given))) for name in starts]
        for number in range(given.rounds):
            say(f"replay, round {number + 1} of {given.rounds}: Penstock")
            settle(given)
            _note(ours, "reader", target.port, tail, given.replayed)
            for name, other in zip(starts, others, strict=True):
                say(f"replay, round {number + 1} of {given.rounds}: {other.peer.name}")
                settle(given)
                _note(other, "peer_reader", name, other.peer.target.port, given.replayed)
        _compare(given, report, "replay", "events/s", [ours, *others], {"NATS": (0.7, 1.0)}, higher=True)
        cpu = [replace(one, rounds=one.more, more=[]) for one in (ours, *others)]
        _compare(given, report, "replay, CPU", "CPU µs/event", cpu, {})


@contextmanager
def _filled(name: str, folder: Path, given: argparse.Namespace) -> Iterator[Peer]:
    """How it was stored does not matter to who reads: they sync now and then here, as they do by default."""
    event = requests.event(given.bytes)
    starting = {"nats": lambda: peers.run_nats(folder / name, event, "2m"),
                "redis": lambda: peers.run_redis(folder / name, event, "everysec")}  # fmt: skip
    with starting[name]() as peer:
        say(f"replay, storing {given.replayed:,} events: {peer.name}")
        with Sender(peer) as sender:
            sender.store(given.replayed)
        yield peer


def _note(measured: Measured, *reader: Any) -> None:
    pid: int = measured.peer.target.pid
    before = cpu_seconds(pid)
    with Child(*reader) as child:
        got = child.answer()
        if "events" not in got:
            got = child.answer()
    measured.rounds.append(got["events"] / got["seconds"])
    measured.more.append(1e6 * (cpu_seconds(pid) - before) / got["events"])
