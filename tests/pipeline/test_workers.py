"""Spark's workers have pyarrow, pandas and pyspark: what runs in tasks needs nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

IN_TASKS = (
    "typed_rows",
    "writing",
    "erasing",
    "merging",
    "jobs.ledger",
    "jobs.rollup",
    "jobs.campaign",
    "source",
    "sink",
)


@pytest.mark.parametrize("module", [*IN_TASKS, pytest.param("../iceberg.tables", id="sabotage: a commit")])
def test_what_runs_in_tasks_does_without_pyiceberg(module: str) -> None:
    name = f"penstock.pipeline.{module}" if not module.startswith("../") else "penstock." + module[3:]
    said = f"import sys; sys.modules['pyiceberg'] = None; import {name}"

    ended = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=False)

    assert (ended.returncode == 0) is not module.startswith("../"), ended.stderr
