"""Trickle: how late a byte is, how much one publisher's bytes to many readers cost, and how many channels are held.

The floor of the first two is a bare relay in the same run: what comes in goes to every reader with `sendall`, and
nothing is kept. (It can serve one publisher, and no reader that comes late.)
"""

from __future__ import annotations

import argparse
import socket
import time
from array import array
from pathlib import Path

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.machine import cpu_seconds
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from penstock.testing import RunningServer

BARE = "bare sendall relay"
PIECE = 64 * 1024
STAMPED = 64  # bytes of a piece whose way is timed: one packet


class ReadersFailed(Exception):
    """Not every reader got everything."""


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("trickle", "Latency, relay and channels of the Trickle door.")
    parser.add_argument("--readers", type=int, default=100, help="of the relay")
    parser.add_argument("--megabytes", type=float, default=8, help="of a segment of the relay")
    parser.add_argument("--pieces", type=int, default=2000, help="that are timed in a round of latency")
    parser.add_argument("--channels", type=int, nargs="+", default=[500, 1000], help="to hold, one after the other")
    parser.add_argument("--seconds", type=int, default=10, help="to hold them")
    parser.add_argument("--only", choices=("latency", "relay", "channels"), help="one of them alone")
    given = parser.parse_args(argv)
    if given.quick:
        given.readers, given.megabytes, given.pieces, given.channels, given.seconds, given.rounds = (
            10,
            1,
            50,
            [10],
            1,
            1,
        )
    parts = {"latency": _latency, "relay": _relay, "channels": _channels}
    with reporting("trickle", given) as (report, folder):
        for name, part in parts.items():
            if given.only in (None, name):
                (folder / name).mkdir()
                part(given, report, folder / name)
    return 0


def request(server: RunningServer, method: str, target: str, *fields: str) -> bytes:
    """A request of the door, as bytes."""
    lines = (f"{method} /trickle/{target} HTTP/1.1", "Host: bench", f"Authorization: Bearer {server.admin_token}")
    return "\r\n".join((*lines, *fields, "", "")).encode()


def _connect(port: int, data: bytes) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(data)
    return peer


def _ask(port: int, data: bytes) -> bytes:
    with _connect(port, data) as peer:
        return peer.recv(65_536)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# ── latency ───────────────────────────────────────────────────────────────────────────────────────


def _latency(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """Small pieces of one segment, 2 ms apart, each timed from `send` to the reader's `recv`."""
    ours, floors = HdrHistogram(1, 60_000_000, 3), HdrHistogram(1, 60_000_000, 3)
    with penstock(folder / "data") as (server, target), Child("bare_relay", 1) as bare:
        bare_port = bare.answer()["port"]
        _ask(target.port, request(server, "POST", "latency", "Content-Length: 0"))
        for number in range(given.rounds):
            say(f"latency, round {number + 1} of {given.rounds}")
            settle(given)
            read = request(server, "GET", f"latency/{number}")
            write = request(server, "POST", f"latency/{number}", "Transfer-Encoding: chunked")
            for port, histogram in ((bare_port, floors), (target.port, ours)):
                for nanoseconds in _stamps(port, read, write, given.pieces):
                    histogram.record_value(max(1, nanoseconds // 1000))
    for percentile, must, aim in ((50.0, 2.0, 1.0), (99.0, 10.0, 5.0)):
        value, floor = (one.get_value_at_percentile(percentile) / 1000 for one in (ours, floors))
        name = f"publisher byte to reader byte, p{percentile:g}"
        report.add(Figure(name, value, "ms", floor, BARE, must, aim, detail={"pieces": given.pieces * given.rounds}))


def _stamps(port: int, read: bytes, write: bytes, pieces: int) -> array[int]:
    """Nanoseconds that each piece took."""
    late = array("q")
    with _connect(port, read) as reader, _connect(port, write) as writer:
        due = time.perf_counter()
        for number in range(pieces):
            time.sleep(max(0.0, due - time.perf_counter()))
            due += 0.002
            mark = b"%012d|" % number
            sent = time.perf_counter_ns()
            writer.sendall(_chunk(mark.ljust(STAMPED, b"x")))
            received = b""
            while mark not in received:
                received += reader.recv(4096)
            late.append(time.perf_counter_ns() - sent)
        writer.sendall(b"0\r\n\r\n")
        writer.recv(4096)
    return late


# ── relay ─────────────────────────────────────────────────────────────────────────────────────────


def _relay(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """One segment to many readers who wait for it: bytes that all of them got, by the clock."""
    size = int(given.megabytes * 1_000_000)
    ours: list[float] = []
    floors: list[float] = []
    cpu: list[float] = []
    with penstock(folder / "data") as (server, target), Child("bare_relay", given.readers) as bare:
        bare_port = bare.answer()["port"]
        _ask(target.port, request(server, "POST", "relay", "Content-Length: 0"))
        read = requests.save(folder / "read.json", request(server, "GET", "relay/-1"))
        write = request(server, "POST", "relay/-1", "Transfer-Encoding: chunked")
        with (
            Child("takers", target.port, given.readers, read, size) as takers,
            Child("takers", bare_port, given.readers, read, size) as bare_takers,
        ):
            for number in range(given.rounds):
                say(f"relay, round {number + 1} of {given.rounds}")
                settle(given)
                floors.append(_megabytes_per_second(bare_takers, bare_port, write, size))
                before = cpu_seconds(target.pid)
                ours.append(_megabytes_per_second(takers, target.port, write, size))
                cpu.append(1000 * (cpu_seconds(target.pid) - before) / (given.megabytes * given.readers))
    ratio = median([one / floor for one, floor in zip(ours, floors, strict=True)])
    detail = {"readers": given.readers, "segment_bytes": size, "cpu_ms_per_megabyte": median(cpu)}
    report.add(
        Figure(
            "relay to all readers", median(ours), "MB/s", median(floors), BARE, 0.5, 0.7, "ratio",
            higher_is_better=True, ratio=ratio, detail=detail,
        )
    )  # fmt: skip


def _megabytes_per_second(takers: Child, port: int, write: bytes, size: int) -> float:
    takers.ask("take")
    time.sleep(0.1)  # the requests are on their way: readers should wait, not come late
    began = time.perf_counter()
    with _connect(port, write) as writer:
        for at in range(0, size, PIECE):
            writer.sendall(_chunk(bytes(min(PIECE, size - at))))
        writer.sendall(b"0\r\n\r\n")
        total: int = takers.answer()["bytes"]
        writer.recv(4096)
    return total / 1e6 / (time.perf_counter() - began)


# ── channels ──────────────────────────────────────────────────────────────────────────────────────


def _channels(given: argparse.Namespace, report: Report, folder: Path) -> None:
    """So many channels, each with a segment a second and two readers; held means that nothing went wrong."""
    held, detail = 0, {}
    with penstock(folder / "data") as (server, target):
        for count in given.channels:
            say(f"holding {count} channels")
            settle(given)
            before = cpu_seconds(target.pid)
            with Child("channels", server.port, count, given.seconds, server.admin_token) as child:
                got = child.answer()
            detail = {"errors": got["errors"], "first_errors": str(got["first"]), "latest_ms": got["late_ms"]}
            detail["cpu_cores"] = (cpu_seconds(target.pid) - before) / given.seconds
            if got["errors"] or got["read"] != 2 * got["segments"] or got["segments"] != count * given.seconds:
                break
            held = count
    report.add(
        Figure(
            "channels held without error", float(held), "channels", float(given.channels[-1]), "channels asked for",
            500, 1000, higher_is_better=True, detail=detail,
        )
    )  # fmt: skip
