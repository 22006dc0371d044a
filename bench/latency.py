"""From the time an event is due to its arrival at a reader, at 70 % of what the server can take.

Open loop: events are due at a rate whether or not the ones before were answered, and each is timed from
when it was due, so a stall counts for everything that had to wait for it. The floor is a listener that
stores nothing, under the same load: what generator, reader and scheduler add by themselves.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from bench.rig import requests
from bench.rig.child import Child
from bench.rig.load import press
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import penstock

STREAM = "/bench/latency"
IN_FLIGHT = 64
PERCENTILES = ((50.0, None), (99.0, 5.0), (99.9, 20.0))  # and their aims in ms


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("latency", "Publish to receive, open loop.")
    parser.add_argument("--share", type=float, default=0.7, help="of the measured saturation")
    parser.add_argument("--seconds", type=float, default=5, help="of each round")
    given = parser.parse_args(argv)
    if given.quick:
        given.rounds, given.seconds = 1, 0.5
    ours: list[HdrHistogram] = []
    floors: list[HdrHistogram] = []
    with reporting("latency", given) as (report, folder), penstock(folder / "data") as (server, target):
        request = requests.publish(STREAM, requests.event(), server.admin_token)
        settle(given)
        saturated = press("own", target, folder, [request], IN_FLIGHT, given.seconds / 2)
        rate = given.share * saturated.rate
        tail = requests.tail(STREAM, server.admin_token)
        with Child("bare_listener") as bare:
            port = bare.answer()["port"]
            for number in range(given.rounds):
                say(f"round {number + 1} of {given.rounds}: {rate:,.0f} events/s")
                settle(given)
                floors.append(_late(port, folder, request, tail, rate, given.seconds))
                ours.append(_late(target.port, folder, request, tail, rate, given.seconds))
        for percentile, aim in PERCENTILES:
            report.add(_figure(percentile, aim, ours, floors, rate, saturated.rate))
    return 0


def _late(port: int, folder: Path, request: bytes, tail: bytes, rate: float, seconds: float) -> HdrHistogram:
    """How late every event of one round arrived, in µs."""
    late, events = folder / "late", int(rate * seconds)
    publish = requests.save(folder / "publish.json", request)
    with Child("reader", port, requests.save(folder / "tail.json", tail), events, late) as reader:
        reader.answer()  # it is open: what is published from now on reaches it
        with Child("publishers", port, IN_FLIGHT, publish, "rate", rate, seconds) as publishers:
            publishers.answer()
        reader.answer()
    nanoseconds = array("q", late.read_bytes())
    histogram = HdrHistogram(1, 60_000_000, 3)
    for value in nanoseconds:
        histogram.record_value(value // 1000)
    return histogram


def _figure(
    percentile: float, aim: float | None, ours: list[HdrHistogram], floors: list[HdrHistogram], rate: float, most: float
) -> Figure:
    value, floor = (
        median([histogram.get_value_at_percentile(percentile) / 1000 for histogram in histograms])
        for histograms in (ours, floors)
    )
    worst = max(histogram.get_max_value() for histogram in ours) / 1000
    return Figure(
        f"p{percentile:g}", value, "ms", floor, "listener that stores nothing", None, aim,
        detail={"events_per_second": rate, "saturation_per_second": most, "worst_ms": worst},
    )  # fmt: skip
