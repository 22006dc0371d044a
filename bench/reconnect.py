"""What happens when one machine of many is lost: its wires come back to the others. Reckoned, not run.

    ./penstock bench reconnect --wires 1000000 --machines 10 --jitter 5

Steps of a tenth of a second. Each lost wire comes back after a random part of the jitter, to any of the machines that
are left. A machine opens as many a second as the cores that are free allow, at the cost that `bench sps` has measured
for one that comes back; TLS adds its handshake, which `bench idle` measures. Who is not served within the patience of a
client tries again, after a pause that doubles. Each opened wire then writes one record into the registry of the
cluster, which takes so many a second: until then the device counts as offline for others, while events reach it
already.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP = 0.1  # seconds
FIGURES = Path(__file__).parents[1] / "docs" / "figures.json"
COST = ("sps", "storm, CPU of one that comes back")
HANDSHAKE = ("idle", "TLS handshake")
ASSUMED_TLS_US = 700.0  # what a handshake is taken as until one is recorded
PATIENCE, PAUSE, LONGEST_PAUSE = 10.0, 1.0, 60.0  # seconds of a client


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and how its clients come back."""

    wires: int
    machines: int
    jitter: float  # seconds over which clients spread their first try
    cores: int = 8
    free: float = 0.5  # part of each machine's cores that is not busy with its own wires
    claims: float = 3_700.0  # records a second that the registry takes
    tls: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU of a wire that comes back, in µs."""

    plain_us: float
    tls_us: float  # what its handshake adds
    measured: bool = False  # whether that was recorded once

    def __str__(self) -> str:
        source = "as `bench idle` has measured" if self.measured else "which is assumed: no run of it is recorded"
        plain, tls = f"{self.plain_us:.0f}", f"{self.tls_us:.0f}"
        return f"One that comes back takes {plain} µs of CPU, its TLS handshake {tls}, {source}."


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds since the machine was lost, and what the others went through."""

    half: float
    nearly_all: float  # 99 of 100
    all: float
    claimed: float  # the registry knows of all
    tries: float  # of a client, on average
    busiest: float  # the longest that somebody waited in a machine's line


def simulate(case: Case, each_us: float, seed: int = 1) -> Outcome:
    """Let one machine be lost; a wire that comes back takes *each_us* of CPU.

    One in so many clients stands for all, so that a large case takes no longer.
    """
    chance = random.Random(seed)  # the same every time, so that the page can be compared
    lost = case.wires // case.machines
    weight = max(1, lost // 20_000)
    per_step = case.free * case.cores * 1e6 / each_us * STEP / weight
    due: dict[int, list[tuple[float, float, int]]] = {}  # by step: when it came, its next pause, its machine
    clients = lost // weight
    for _ in range(clients):
        _come(due, chance.random() * case.jitter, PAUSE, chance, case)
    lines: list[deque[tuple[float, float, int]]] = [deque() for _ in range(case.machines - 1)]
    open_at: list[float] = []
    tries, busiest, step, credit = clients, 0.0, 0, 0.0
    while len(open_at) < clients:
        now = step * STEP
        for client in due.pop(step, ()):
            lines[client[2]].append(client)
        credit += per_step
        served = int(credit)
        credit -= served
        for line in lines:
            left = served
            while line and left:
                came, pause, _machine = line.popleft()
                left -= 1
                if now - came > PATIENCE:  # it has gone; what it cost to find out is spent
                    tries += 1
                    _come(due, now + pause * (0.5 + chance.random()), min(LONGEST_PAUSE, 2 * pause), chance, case)
                else:
                    busiest = max(busiest, now - came)
                    open_at.append(now)
        step += 1
    open_at.sort()
    claimed = _claimed(open_at, case.claims / weight)
    at = [open_at[min(clients - 1, clients * part // 100)] for part in (50, 99, 100)]
    return Outcome(*at, claimed, tries / clients, busiest)


def _come(
    due: dict[int, list[tuple[float, float, int]]], at: float, pause: float, chance: random.Random, case: Case
) -> None:
    due.setdefault(int(at / STEP) + 1, []).append((at, pause, chance.randrange(case.machines - 1)))


def _claimed(open_at: list[float], claims: float) -> float:
    """When the last record is written, if each waits for those before it."""
    arrivals = Counter(int(at) for at in open_at)
    waiting, second = 0.0, 0
    while waiting > 0 or any(at >= second for at in arrivals):
        waiting = max(0.0, waiting + arrivals.pop(second, 0) - claims)
        second += 1
    return float(second)


def costs(file: Path = FIGURES) -> Costs:
    """As they were measured last."""
    book = json.loads(file.read_text())
    bench, figure = HANDSHAKE
    handshake = book.get(bench, {}).get(figure)
    plain_us = _last(book[COST[0]][COST[1]])
    return Costs(plain_us, _last(handshake), measured=True) if handshake else Costs(plain_us, ASSUMED_TLS_US)


def _last(figure: dict[str, Any]) -> float:
    return float(figure["runs"][-1]["value"])


CASES = (
    Case(1_000_000, 10, 1.0),
    Case(1_000_000, 10, 10.0),
    Case(1_000_000, 10, 10.0, claims=60_000.0),
    Case(10_000_000, 50, 1.0),
    Case(10_000_000, 50, 30.0),
    Case(10_000_000, 50, 30.0, claims=60_000.0),
)
"""What docs/scale.md shows."""

HEADINGS = (
    "wires", "machines", "jitter, s", "registry, records/s", "half are back, s", "99 %, s", "all, s",
    "registry knows, s", "tries",
)  # fmt: skip


def rows(cases: tuple[Case, ...] = CASES) -> list[list[str]]:
    """The table, as text."""
    cost = costs()
    found = []
    for case in cases:
        came = simulate(case, cost.plain_us + (cost.tls_us if case.tls else 0))
        given = (f"{case.wires:,}", f"{case.machines}", f"{case.jitter:g}", f"{case.claims:,.0f}")
        times = (came.half, came.nearly_all, came.all, came.claimed)
        found.append([*given, *(f"{seconds:.1f}" for seconds in times), f"{came.tries:.2f}"])
    return found


def main(argv: list[str]) -> int:
    """Print the outcome of the cases of docs/scale.md, or of one that is given."""
    parser = argparse.ArgumentParser(prog="penstock bench reconnect", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wires", type=int, help="in all; without it the cases of docs/scale.md")
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--jitter", type=float, default=10.0, help="seconds over which clients spread their first try")
    parser.add_argument("--cores", type=int, default=8, help="of a machine")
    parser.add_argument("--free", type=float, default=0.5, help="part of the cores that is free")
    parser.add_argument("--claims", type=float, default=3_700.0, help="records a second that the registry takes")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args(argv)
    cases = CASES
    if given.wires:
        if given.machines < 2 or given.wires < given.machines or not 0 < given.free <= 1 or given.claims <= 0:
            parser.error("at least two machines, a wire each, some free cores and some records a second")
        one = Case(given.wires, given.machines, given.jitter, given.cores, given.free, given.claims, not given.plain)
        cases = (one,)
    for row in rows(cases):
        shown = dict(zip(HEADINGS, row, strict=True))
        print(json.dumps(shown) if given.json else " · ".join(f"{name} {value}" for name, value in shown.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
