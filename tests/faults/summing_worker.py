"""A worker whose metrics page adds up the counters of all: for the test that must notice it."""

from __future__ import annotations

import sys
from typing import Any

from penstock.cli.app import run
from penstock.node.metrics import Counted, Metrics


async def summing(self: Metrics) -> Counted:
    """One number for each counter and bucket, of all workers that answer."""
    counted = await _everybodys(self)
    sums: dict[str, list[Any]] = {}
    for name, meaning, counts, total, _ in counted.histograms:
        known = sums.setdefault(name, [name, meaning, [0] * len(counts), 0.0, {}])
        known[2] = [one + other for one, other in zip(known[2], counts, strict=True)]
        known[3] += total
    counted.histograms = [tuple(known) for known in sums.values()]
    return counted


_everybodys = Metrics._everybodys

if __name__ == "__main__":
    Metrics._everybodys = summing  # type: ignore[method-assign]
    sys.exit(run(sys.argv[1:]))
