"""Durable publish over HTTP, against bare writes with fdatasync on the same disk, and against a bare prototype.

The rates are marked twice: as they are, and as shares of what the prototype makes in the same minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bench.rig import requests
from bench.rig.bare_disk import Syncs, bare_syncs
from bench.rig.child import Child
from bench.rig.load import Load, Target, generators, press, undisturbed
from bench.rig.report import Figure, Report, arguments, median, reporting, say, settle
from bench.rig.servers import confirm, penstock
from penstock.testing import RunningServer

LINES = 1000  # events in one NDJSON body: the largest batch
BODIES_IN_FLIGHT = 4
SHARE_MUST, SHARE_AIM = 0.67, 0.85


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load and the rate it has to reach."""

    name: str
    in_flight: int
    lines: int  # events in a request; 1 is a raw body
    must: float
    aim: float
    prototype: bool = False  # it is also compared with a bare prototype


ONE = Case("one in flight, p50", 1, 1, 1.0, 0.6)
CASES = (
    ONE,
    Case("64 in flight", 64, 1, 18_000, 25_000, prototype=True),
    Case("256 in flight", 256, 1, 25_000, 35_000, prototype=True),
    Case("NDJSON batches", BODIES_IN_FLIGHT, LINES, 80_000, 130_000),
)


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("append", "Durable publishes over HTTP.")
    parser.add_argument("--seconds", type=float, default=2, help="of each round and load generator")
    given = parser.parse_args(argv)
    with (
        reporting("append", given) as (report, folder),
        penstock(folder / "data") as (server, target),
        Child("bare_publish", folder / "bare.db") as bare,
    ):
        prototype = Target(bare.answer()["port"], bare.pid)
        acknowledged = sum(_measure(case, given, report, folder, server, (target, prototype)) for case in CASES)
        confirm(server, "/bench/append", acknowledged)
    return 0


def _measure(
    case: Case,
    given: argparse.Namespace,
    report: Report,
    folder: Path,
    server: RunningServer,
    targets: tuple[Target, Target],
) -> int:
    """Floor and figure in turn; return how many events were acknowledged. *targets* are ours and the prototype."""
    body = requests.event() if case.lines == 1 else b"\n".join([requests.event()] * case.lines)
    request = requests.publish("/bench/append", body, server.admin_token, lines=case.lines > 1)
    seconds, rounds = (0.3, 1) if given.quick else (given.seconds, given.rounds)
    floors: list[Syncs] = []
    loads: list[Load] = []
    bare: list[Load] = []
    used = ("own",) if given.quick else generators()
    target, prototype = targets
    for number in range(rounds):
        say(f"{case.name}: round {number + 1} of {rounds}")
        settle(given)
        floors.append(bare_syncs(folder, case.in_flight * case.lines, requests.EVENT_BYTES, seconds / 2))
        for generator in used:
            loads.append(press(generator, target, folder, [request], case.in_flight, seconds))
            if case.prototype:
                bare.append(press(generator, prototype, folder, [request], case.in_flight, seconds))
    report.add(_figure(case, floors, _better(undisturbed(loads)), ", ".join(used)))
    if bare:
        report.add(_share(case, loads, bare, ", ".join(used)))
    return case.lines * sum(load.requests for load in loads)


def _share(case: Case, loads: list[Load], bare: list[Load], used: str) -> Figure:
    """Of what the prototype makes: each run with the one after it, so that both see the same machine."""
    ratio = median([load.rate / other.rate for load, other in zip(loads, bare, strict=True)])
    cpu_us, bare_us = (median([load.server_us for load in runs]) for runs in (loads, bare))
    return Figure(
        f"{case.name} / prototype", median([load.rate for load in loads]), "events/s",
        median([load.rate for load in bare]), "bare prototype", SHARE_MUST, SHARE_AIM,
        "ratio", True, ratio, {"server_cpu_us": cpu_us, "prototype_cpu_us": bare_us, "cpu_ratio": cpu_us / bare_us},
        used,
    )  # fmt: skip


def _better(loads: list[Load]) -> list[Load]:
    """The runs of the generator under which the server did more."""
    by_generator = {load.generator: [one for one in loads if one.generator == load.generator] for load in loads}
    return max(by_generator.values(), key=lambda runs: median([run.rate for run in runs]))


def _figure(case: Case, floors: list[Syncs], loads: list[Load], used: str) -> Figure:
    """*loads* are of the generator under which the server did more, of all that were *used*."""
    rate, p50_ms = case.lines * median([load.rate for load in loads]), median([load.p50_ms for load in loads])
    detail = {
        "per_second": rate,
        "p50_ms": p50_ms,
        "p99_ms": median([load.p99_ms for load in loads]),
        "server_cpu_us": median([load.server_us for load in loads]) / case.lines,
        "server_cores": median([load.server_cpu / load.seconds for load in loads]),
        "client_cores": median([load.client_cpu / load.seconds for load in loads]),
        "neighbour_cores": median([load.neighbours for load in loads]),
        "runs": len(loads),
        "generator": loads[0].generator,
    }
    if case is ONE:
        floor = median([sync.p50_ms for sync in floors])
        return Figure(
            case.name, p50_ms, "ms", floor, "one write and fdatasync", ONE.must, ONE.aim, detail=detail, generator=used
        )  # fmt: skip
    return Figure(
        case.name, rate, "events/s", median([sync.rate for sync in floors]),
        f"write and fdatasync, {case.in_flight * case.lines} events a group", case.must, case.aim,
        higher_is_better=True, detail=detail, generator=used,
    )  # fmt: skip
