"""Memory of the server for one connection on which nothing happens, against a bare protocol object on uvloop."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.rig import requests
from bench.rig.certificate import make_certificate
from bench.rig.child import Child
from bench.rig.machine import memory_kb
from bench.rig.report import Figure, Report, arguments, median, reporting, say
from bench.rig.servers import penstock

WARM = 50  # connections before the first look: what is made once is not the connections'
LINES = {("chunked", False): (4.0, 2.5), ("WebSocket", False): (8.0, 6.0)}
TLS_SHARE = 5  # handshakes take the client long: a fifth of the connections tells as much


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("idle", "Memory of an idle connection.")
    parser.add_argument("--connections", type=int, default=5000)
    given = parser.parse_args(argv)
    if given.quick:
        given.connections = 100
    if given.rounds == 3:
        given.rounds = 1  # memory does not depend on the neighbours
    with reporting("idle", given) as (report, folder):
        for tls in (False, True):
            for kind in ("chunked", "WebSocket"):
                _measure(kind, given, report, folder, tls=tls)
    return 0


def _measure(kind: str, given: argparse.Namespace, report: Report, folder: Path, *, tls: bool) -> None:
    name = kind + (", TLS" if tls else "")
    certificate = make_certificate(folder / "certificate.pem") if tls else None
    count = given.connections // TLS_SHARE if tls else given.connections
    floors, ours = [], []
    for number in range(given.rounds):
        say(f"{name}: round {number + 1} of {given.rounds}")
        floors.append(_bare(folder, count, certificate))
        ours.append(_penstock(kind, folder / f"data-{kind}-{tls}-{number}", count, certificate))
    must, aim = LINES.get((kind, tls), (None, None))
    report.add(
        Figure(
            name, median(ours), "KB/connection", median(floors), "bare protocol object on uvloop", must, aim,
            detail={"connections": count},
        )
    )  # fmt: skip


def _bare(folder: Path, count: int, certificate: Path | None) -> float:
    file = requests.save(folder / "bare.json", requests.tail("/bench", "none"))
    security = ["tls"] if certificate else []
    with Child("bare_listener", *[certificate] if certificate else []) as server:
        return _kb_each(server.pid, server.answer()["port"], file, count, [200, *security])


def _penstock(kind: str, data: Path, count: int, certificate: Path | None) -> float:
    make, status = (requests.tail, 200) if kind == "chunked" else (requests.websocket_tail, 101)
    security = ["tls"] if certificate else []
    settings = {"server_tls_certificate": certificate} if certificate else {}
    with penstock(data, **settings) as (server, target):
        file = requests.save(data.with_suffix(".json"), make("/bench", server.admin_token))
        return _kb_each(target.pid, server.port, file, count, [status, *security])


def _kb_each(pid: int, port: int, file: Path, count: int, options: list[object]) -> float:
    with Child("wires", port, WARM, file, *options) as warm:
        warm.answer()
        before = memory_kb(pid)
        with Child("wires", port, count, file, *options) as wires:
            wires.answer()
            return (memory_kb(pid) - before) / count
