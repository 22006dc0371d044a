"""From the time an event is due to its arrival at a reader, at 70 % of what goes that way at most.

Open loop: events are due at a rate whether or not the ones before were answered, and each is timed from
when it was due, so a stall counts for everything that had to wait for it. The floor is a listener that
stores nothing, under the same load: what generator, reader and scheduler add by themselves.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.load import Target, press
from bench.rig.machine import Neighbours, cpu_seconds
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import penstock

STREAM = "/bench/latency"
IN_FLIGHT = 64
MORE_THAN_COME = 10**9  # events
PERCENTILES = ((50.0, 5.0, 2.0), (99.0, 20.0, 5.0), (99.9, 40.0, 20.0))  # with what they must be, and the aim, in ms


@dataclass(frozen=True, slots=True)
class Round:
    """How late the events of one round were, in µs, and the cores that others used meanwhile."""

    late: HdrHistogram
    neighbours: float


@dataclass(frozen=True, slots=True)
class Flow:
    """What is published and read, and how fast."""

    publish: Path
    tail: Path
    rate: float
    seconds: float


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("latency", "Publish to receive, open loop.")
    parser.add_argument("--share", type=float, default=0.7, help="of the measured saturation")
    parser.add_argument("--seconds", type=float, default=5, help="of each round")
    given = parser.parse_args(argv)
    if given.quick:
        given.rounds, given.seconds = 1, 0.5
    ours: list[Round] = []
    floors: list[Round] = []
    with reporting("latency", given) as (report, folder), penstock(folder / "data") as (server, target):
        request = requests.publish(STREAM, requests.event(), server.admin_token)
        publish = requests.save(folder / "publish.json", request)
        tail = requests.save(folder / "tail.json", requests.tail(STREAM, server.admin_token))
        settle(given)
        with Child("reader", target.port, tail, MORE_THAN_COME) as reader:  # as in the rounds: it takes its part
            reader.answer()
            saturated = press("own", target, folder, [request], IN_FLIGHT, given.seconds / 2)
        flow = Flow(publish, tail, given.share * saturated.rate, given.seconds)
        with Child("bare_listener") as bare:
            floor = Target(bare.answer()["port"], bare.pid)
            for number in range(given.rounds):
                say(f"round {number + 1} of {given.rounds}: {flow.rate:,.0f} events/s")
                settle(given)
                floors.append(_round(floor, flow, folder / "late"))
                ours.append(_round(target, flow, folder / "late"))
        for percentile, must, aim in PERCENTILES:
            report.add(_figure(percentile, must, aim, ours, floors, flow.rate, saturated.rate))
    return 0


def _round(target: Target, flow: Flow, late: Path) -> Round:
    before, neighbours = cpu_seconds(target.pid), Neighbours()
    with Child("reader", target.port, flow.tail, int(flow.rate * flow.seconds), late) as reader:
        reader.answer()  # it is open: what is published from now on reaches it
        with Child("publishers", target.port, IN_FLIGHT, flow.publish, "rate", flow.rate, flow.seconds) as publishers:
            publishing = publishers.answer()["cpu"]
        reading = reader.answer()["cpu"]
        cores = neighbours.cores(cpu_seconds(target.pid) - before + publishing + reading)
    return Round(_histogram(late), cores)


def _histogram(late: Path) -> HdrHistogram:
    histogram = HdrHistogram(1, 60_000_000, 3)
    for nanoseconds in array("q", late.read_bytes()):
        histogram.record_value(nanoseconds // 1000)
    return histogram


def _figure(
    percentile: float, must: float, aim: float, ours: list[Round], floors: list[Round], rate: float, most: float
) -> Figure:
    value, floor = (
        median([one.late.get_value_at_percentile(percentile) / 1000 for one in rounds]) for rounds in (ours, floors)
    )
    detail = {
        "events_per_second": rate,
        "saturation_per_second": most,
        "worst_ms": max(one.late.get_max_value() for one in ours) / 1000,
        "neighbour_cores": median([one.neighbours for one in ours]),
    }
    return Figure(f"p{percentile:g}", value, "ms", floor, "listener that stores nothing", must, aim, detail=detail)
