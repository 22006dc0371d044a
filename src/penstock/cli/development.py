"""`bench` and `test`: looking after Penstock itself."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.errors import NotFound

BENCH = Path(__file__).parents[3] / "bench"


def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="What to measure.")] = ""
) -> int:
    """Measure something against its floor in the same run.

    Everything after NAME goes to the benchmark; --json prints one object a line.

    \b
    ./penstock bench append --json
    """
    names = sorted(file.stem for file in BENCH.glob("[a-z]*.py")) if BENCH.is_dir() else []
    if not name:
        print("\n".join(names))
        return 0
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0)
        raise NotFound("benchmark", name, remedy=f"Did you mean {near[0]}?" if near else "There are none here.")
    sys.path.insert(0, str(BENCH.parent))
    return int(importlib.import_module(f"bench.{name}").main(context.args) or 0)


def run_tests(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Only lint, types and the fast group.")] = False,
    long: Annotated[bool, typer.Option("--long", help="The long tests, too.")] = False,
    times: Annotated[int, typer.Option(min=1, help="So often in a row, until a run fails.")] = 1,
    beside: Annotated[int, typer.Option(min=0, help="Processes that keep a core busy meanwhile.")] = 0,
    no_system: Annotated[bool, typer.Option("--no-system", help="Never install Debian packages.")] = False,
) -> int:
    """Run the test suite: lint and types, then the groups of tests, two at a time.

    Groups are check, fast, doors, bystander, lake, faults, cluster, spark, browser. What follows them goes to pytest.

    A test over its limit (--limit SECONDS, 300 by default) is ended and has failed; so is a group at ten times its
    budget. The run goes on with the next. A group that is over its budget and ends by itself is marked "over".

    \b
    ./penstock test
    ./penstock test --fast
    ./penstock test faults -- -k disk -x
    ./penstock test --times 10 --beside 2
    """
    from penstock.cli import test_runner

    if no_system:
        os.environ["PENSTOCK_NO_SYSTEM"] = "1"
    return test_runner.run_often(context.args, times, beside, only_fast=fast, long=long)
