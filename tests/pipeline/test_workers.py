"""Spark's workers have pyarrow, pandas and pyspark: what runs in tasks needs nothing else."""

from __future__ import annotations

import subprocess
import sys

IN_TASKS = (
    "typed_rows",
    "writing",
    "erased_rows",
    "merging",
    "jobs.ledger",
    "jobs.rollup",
    "jobs.campaign",
    "source",
    "sink",
)


def refused(*modules: str) -> list[str]:
    """Those of *modules* that cannot be imported where there is no pyiceberg, and why."""
    program = (
        "import importlib, sys; sys.modules['pyiceberg'] = None\n"
        "for name in sys.argv[1:]:\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: print(name, error)"
    )
    ended = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_what_runs_in_tasks_does_without_pyiceberg() -> None:
    assert refused(*(f"penstock.pipeline.{module}" for module in IN_TASKS)) == []
    # And the same look finds a module that commits
    assert len(refused("penstock.iceberg.tables")) == 1
