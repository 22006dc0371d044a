"""Figures, and how they are shown: one JSON object a line, or a table."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from bench.rig import figures, machine

DISK = Path("/var/tmp")  # noqa: S108  # unlike /tmp it is on a disk, and the folder made in it has a random name


@dataclass(frozen=True, slots=True)
class Figure:
    """One result with what it is measured against.

    *must* and *aim* judge the ratio to the floor when `judged` is "ratio", the value otherwise.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_of: str = ""  # what the floor is
    must: float | None = None
    aim: float | None = None
    judged: str = "value"
    higher_is_better: bool = False
    ratio: float | None = None  # of value to floor; by default of the two numbers here
    detail: dict[str, Any] = field(default_factory=dict)
    generator: str = ""  # which programs made the load, where that depends on what is installed

    @property
    def over_floor(self) -> float | None:
        """The ratio, rounded as it is shown."""
        if self.ratio is not None:
            return self.ratio
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> str | None:
        """Which of its two lines the figure reaches. One that must only be reported always does."""
        measured = self.over_floor if self.judged == "ratio" else self.value
        if measured is None or (self.must is None and self.aim is None):
            return None
        if self.aim is not None and self._reaches(measured, self.aim):
            return "aim"
        return "must" if self.must is None or self._reaches(measured, self.must) else "no"

    def _reaches(self, measured: float, line: float) -> bool:
        return measured >= line if self.higher_is_better else measured <= line


def median(values: Sequence[float]) -> float:
    """The middle one: a neighbour's burst on a shared core spoils one round, not the figure."""
    return statistics.median(values)


def of_floor(
    name: str, ours: Sequence[float], unit: str, floors: Sequence[float], floor_of: str, must: float, aim: float,
    detail: dict[str, Any],
) -> Figure:  # fmt: skip
    """A figure that is judged by the median of its rounds' ratios: each round with the floor of that round."""
    ratio = median([one / floor for one, floor in zip(ours, floors, strict=True)])
    rounds, floor_rounds = ([float(f"{one:.4g}") for one in many] for many in (ours, floors))
    detail = {**detail, "rounds": rounds, "floor_rounds": floor_rounds}
    return Figure(
        name, median(ours), unit, median(floors), floor_of, must, aim, "ratio", ratio=ratio, detail=detail
    )  # fmt: skip


class Report:
    """Prints figures as they come."""

    def __init__(self, bench: str, *, as_json: bool, record: bool = False) -> None:
        self._bench, self._as_json, self._record = bench, as_json, record
        self._machine, self._date = machine.describe(), time.strftime("%Y-%m-%d", time.gmtime())
        self.figures: list[Figure] = []

    def add(self, figure: Figure) -> None:
        """Take a figure; as JSON it is printed at once."""
        self.figures.append(figure)
        if self._as_json:
            print(json.dumps(self._object(figure)), flush=True)

    def _object(self, figure: Figure) -> dict[str, Any]:
        return {
            "bench": self._bench,
            "figure": figure.name,
            "value": _rounded(figure.value),
            "unit": figure.unit,
            "floor": _rounded(figure.floor),
            "floor_of": figure.floor_of or None,
            "ratio": _rounded(figure.over_floor),
            "judged": figure.judged,
            "must": figure.must,
            "aim": figure.aim,
            "met": figure.met,
            "generator": figure.generator or None,
            "detail": {name: _rounded(value) for name, value in figure.detail.items()},
            "machine": self._machine,
            "date": self._date,
        }

    def close(self) -> None:
        """Record the figures and print their table, if that was asked for."""
        if self._record:
            for name in figures.record([self._object(figure) for figure in self.figures]):
                say(f"not recorded, for want of what it is measured against: {name}")
        if self._as_json:
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"{self._bench}: {self._machine}, {self._date}")
        for heading in ("figure", "value", "unit", "floor", "ratio", "must", "aim", "met"):
            text = heading in ("figure", "unit", "met")
            table.add_column(heading, justify="left" if text else "right", no_wrap=True)
        for figure in self.figures:
            numbers = (figure.floor, figure.over_floor, figure.must, figure.aim)
            shown = ["" if number is None else f"{_rounded(number):,}" for number in numbers]
            table.add_row(figure.name, f"{_rounded(figure.value):,}", figure.unit, *shown, figure.met or "")
        Console().print(table)


def _rounded(value: Any) -> Any:
    """Four significant digits: the rest is noise."""
    return float(f"{value:.4g}") if isinstance(value, float) and abs(value) < 10_000 else _whole(value)


def _whole(value: Any) -> Any:
    return round(value) if isinstance(value, float) else value


def settle(given: argparse.Namespace) -> float:
    """Wait for the neighbours to be quiet before a round; return the cores they use when patience ends.

    Each time that was in vain the patience halves, so that a run also ends on a machine that is never quiet.
    """
    if given.quick:
        return 0.0
    cores = machine.wait_for_quiet(given.patience)
    if cores >= machine.QUIET:
        given.patience /= 2
    return cores


def say(text: str) -> None:
    """Tell whoever watches what is going on; results go to standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)


def arguments(bench: str, description: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(prog=f"penstock bench {bench}", description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--record", action="store_true", help="add the figures to docs/figures.json")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it run, not how fast is it")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of figure and floor in turn")
    parser.add_argument(
        "--patience",
        type=float,
        default=10,
        help="seconds to wait for a quiet machine before a round; half as long each time that it does not become quiet",
    )
    parser.add_argument("--dir", type=Path, default=DISK, help="where data goes: on the disk that is to be measured")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def reporting(bench: str, given: argparse.Namespace) -> Iterator[tuple[Report, Path]]:
    """A report, and a directory that is gone afterwards, also when the run is ended from outside."""
    report = Report(bench, as_json=given.json, record=given.record and not given.quick)
    signal.signal(signal.SIGTERM, _leave)  # else servers and gigabytes of data would stay behind
    with TemporaryDirectory(prefix="penstock-bench-", dir=given.dir) as folder:
        yield report, Path(folder)
    report.close()
