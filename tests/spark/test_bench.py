"""`bench pipeline`, as small as it gets; test_up.py runs the part that needs an `up`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench import pipeline
from bench.rig import duckdb_readers, lake_commits, why


def test_the_benchmark_prints_its_figures_with_their_floors(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process has one session, and that is ours
    monkeypatch.setattr(pipeline, "session", lambda *_: nullcontext(spark))
    for module, name in ((lake_commits, "WINDOW"), (why, "QUESTIONS"), (duckdb_readers, "ROUNDS")):
        monkeypatch.setattr(module, name, 5)
    only = [option for part in pipeline.PARTS if part not in ("freshness", "idle") for option in ("--only", part)]

    assert pipeline.main(["--quick", "--json", "--dir", str(tmp_path), *only]) == 0

    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["export", "archive", "Spark's part", "time per event", "archive to S3", "sink", "sink"]
    names += ["commit of a file", "commit of a file", "up", "up", "ledger and deliveries"]
    names += ["DuckDB by REST", "why"]
    assert [figure["figure"].partition(",")[0] for figure in figures] == names
    sizes = [*["20,000"] * 6, "1,000", *["20"] * 2, *["8"] * 2, *["8,000"] * 3]
    for figure, size in zip(figures, sizes, strict=True):
        assert f" {size} " in f"{figure['figure']} "
    for figure in figures:
        assert figure["value"] > 0
        assert figure["floor"] is None or figure["floor"] > 0
        assert figure["met"] in ("must", "aim", "no")
    assert list(tmp_path.iterdir()) == []
