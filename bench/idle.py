"""Memory of the server for one connection on which nothing happens, against a bare protocol object on uvloop.

And what TLS adds to the CPU of opening one, which `bench reconnect` reckons with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.rig import requests
from bench.rig.certificate import make_certificate
from bench.rig.child import Child
from bench.rig.machine import cpu_seconds, memory_kb
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import penstock

WARM = 50  # connections before the first look: what is made once is not the connections'
LINES = {("chunked", False): (4.0, 2.5), ("WebSocket", False): (8.0, 6.0)}
FLOOR = "bare protocol object on uvloop"
HANDSHAKE = "TLS handshake"
TLS_SHARE = 5  # handshakes take the client long: a fifth of the connections tells as much


class Listening(NamedTuple):
    """A server, and what is to be opened on it."""

    pid: int
    port: int
    file: Path  # with the request
    options: list[object]  # of `wires`


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("idle", "Memory of an idle connection, and CPU of a TLS handshake.")
    parser.add_argument("--connections", type=int, default=5000)
    given = parser.parse_args(argv)
    handshakes = given.rounds
    if given.quick:
        given.connections, handshakes = 100, 1
    if given.rounds == 3:
        given.rounds = 1  # memory does not depend on the neighbours
    with reporting("idle", given) as (report, folder):
        for tls in (False, True):
            for kind in ("chunked", "WebSocket"):
                _measure(kind, given, report, folder, tls=tls)
        _handshake(given, report, folder, handshakes)
    return 0


def _measure(kind: str, given: argparse.Namespace, report: Report, folder: Path, *, tls: bool) -> None:
    name = kind + (", TLS" if tls else "")
    certificate = make_certificate(folder / "certificate.pem") if tls else None
    count = given.connections // TLS_SHARE if tls else given.connections
    floors, ours = [], []
    for number in range(given.rounds):
        say(f"{name}: round {number + 1} of {given.rounds}")
        floors.append(bare_kb(folder, count, certificate))
        with _penstock(kind, folder / f"data-{kind}-{tls}-{number}", certificate) as server:
            ours.append(_kb_each(server, count))
    must, aim = LINES.get((kind, tls), (None, None))
    detail = {"connections": count}
    report.add(Figure(name, median(ours), "KB/connection", median(floors), FLOOR, must, aim, detail=detail))


def _handshake(given: argparse.Namespace, report: Report, folder: Path, rounds: int) -> None:
    """What a connection with TLS costs the server more than one without, to the head of its answer.

    Each is a whole handshake with a key on P-256: these clients resume no session.
    """
    certificate = make_certificate(folder / "certificate.pem")
    count = max(WARM, given.connections // TLS_SHARE)
    floors, ours = [], []
    with ExitStack() as stack:
        bare, plain_bare = (stack.enter_context(_bare(folder, which)) for which in (certificate, None))
        server, plain = (
            stack.enter_context(_penstock("chunked", folder / f"handshake-{name}", which))
            for name, which in (("tls", certificate), ("plain", None))
        )
        for number in range(rounds):
            say(f"{HANDSHAKE}: round {number + 1} of {rounds}")
            settle(given)
            floors.append(_cpu_us_each(bare, count) - _cpu_us_each(plain_bare, count))
            ours.append(_cpu_us_each(server, count) - _cpu_us_each(plain, count))
    rounds_us, floors_us = ([round(us, 1) for us in many] for many in (ours, floors))
    detail = {"connections": count, "rounds": rounds_us, "floor_rounds": floors_us}
    report.add(Figure(HANDSHAKE, median(ours), "CPU µs/connection", median(floors), FLOOR, detail=detail))


def bare_kb(folder: Path, count: int, certificate: Path | None = None) -> float:
    """Memory of one connection that is a bare protocol object."""
    with _bare(folder, certificate) as server:
        return _kb_each(server, count)


@contextmanager
def _bare(folder: Path, certificate: Path | None) -> Iterator[Listening]:
    file = requests.save(folder / "bare.json", requests.tail("/bench", "none"))
    security = ["tls"] if certificate else []
    with Child("bare_listener", *[certificate] if certificate else []) as server:
        yield Listening(server.pid, server.answer()["port"], file, [200, *security])


@contextmanager
def _penstock(kind: str, data: Path, certificate: Path | None) -> Iterator[Listening]:
    make, status = (requests.tail, 200) if kind == "chunked" else (requests.websocket_tail, 101)
    security = ["tls"] if certificate else []
    settings = {"server_tls_certificate": certificate} if certificate else {}
    with penstock(data, **settings) as (server, target):
        file = requests.save(data.with_suffix(".json"), make("/bench", server.admin_token))
        yield Listening(target.pid, server.port, file, [status, *security])


@contextmanager
def _open(server: Listening, count: int) -> Iterator[None]:
    with Child("wires", server.port, count, server.file, *server.options) as wires:
        wires.answer()
        yield


def _kb_each(server: Listening, count: int) -> float:
    with _open(server, WARM):
        before = memory_kb(server.pid)
        with _open(server, count):
            return (memory_kb(server.pid) - before) / count


def _cpu_us_each(server: Listening, count: int) -> float:
    with _open(server, WARM):
        before = cpu_seconds(server.pid)
        with _open(server, count):
            return 1e6 * (cpu_seconds(server.pid) - before) / count
