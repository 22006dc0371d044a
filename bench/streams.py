"""Publish rate over very many existing streams, against the same over ten."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.rig import requests
from bench.rig.load import Load, press_streams
from bench.rig.report import Figure, arguments, median, reporting, say, settle
from bench.rig.servers import penstock
from penstock.core.log import prepare
from penstock.engines.sqlite import open_sqlite
from penstock.values import Batch, Draft

PARENT = "/rooms/"
FEW = 10
_BATCH, _AT_ONCE = 1000, 8


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = arguments("streams", "Publishing over many streams.")
    parser.add_argument("--existing", type=int, default=1_000_000, help="streams that there are")
    parser.add_argument("--seconds", type=float, default=3, help="of each round")
    given = parser.parse_args(argv)
    if given.quick:
        given.existing, given.rounds, given.seconds = 2000, 1, 0.3
    many: list[Load] = []
    few: list[Load] = []
    with reporting("streams", given) as (report, folder):
        (folder / "data").mkdir(mode=0o700)
        asyncio.run(make_streams(folder / "data", given.existing))
        with penstock(folder / "data") as (server, target):
            request = requests.publish("STREAM", requests.event(), server.admin_token)
            for number in range(given.rounds):
                say(f"round {number + 1} of {given.rounds}")
                settle(given)
                few.append(press_streams(target, folder, request, (PARENT, FEW), given.seconds))
                many.append(press_streams(target, folder, request, (PARENT, given.existing), given.seconds))
        report.add(_figure(many, few, given.existing))
    return 0


async def make_streams(data: Path, count: int) -> None:
    """Make the streams by publishing one event to each, through the engine itself: HTTP would take minutes."""
    began = time.monotonic()
    async with open_sqlite(data, node="bench") as engine:
        await prepare(engine.log)
        for start in range(0, count, _BATCH * _AT_ONCE):
            firsts = range(start, min(count, start + _BATCH * _AT_ONCE), _BATCH)
            await asyncio.gather(*[engine.log.append(_batch(first, min(count, first + _BATCH))) for first in firsts])
            if start % 100_000 < _BATCH * _AT_ONCE:
                say(f"{start:,} of {count:,} streams after {time.monotonic() - began:.0f} s")


def _batch(first: int, end: int) -> Batch:
    return Batch(tuple(Draft(f"{PARENT}{number}", b"first") for number in range(first, end)))


def _figure(many: list[Load], few: list[Load], existing: int) -> Figure:
    """The rates' ratio, of rounds that no neighbour disturbed.

    A busy neighbour slows both halves down until they are alike. Without a quiet round it is therefore
    the CPU time of a publish that is compared.
    """
    pairs = list(zip(many, few, strict=True))
    quiet = [(one, other) for one, other in pairs if one.quiet and other.quiet]
    cpu_ratio = median([other.server_us / one.server_us for one, other in quiet or pairs])
    ratio = median([one.rate / other.rate for one, other in quiet]) if quiet else cpu_ratio
    many, few = [one for one, _ in quiet or pairs], [other for _, other in quiet or pairs]
    detail = {
        "server_cpu_us": median([load.server_us for load in many]),
        "server_cpu_us_few": median([load.server_us for load in few]),
        "cpu_ratio": cpu_ratio,
        "quiet_rounds": len(quiet),
        "p99_ms": median([load.p99_ms for load in many]),
        "neighbour_cores": median([load.neighbours for load in (*many, *few)]),
    }
    return Figure(
        f"over {existing:,} streams", median([load.rate for load in many]), "events/s",
        median([load.rate for load in few]), f"the same over {FEW} streams", 0.6, 0.8, "ratio", True, ratio, detail,
        many[0].generator,
    )  # fmt: skip
