"""The benchmark of the cluster runs, and says against what it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import cluster


def test_the_benchmark_prints_a_figure_for_each_sync_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.main(["--quick", "--json", "--dir", str(tmp_path)]) == 0

    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    appends = [figure for figure in figures if figure["figure"].startswith("appends")]
    assert [figure["figure"].rpartition(" ")[2] for figure in appends] == list(cluster.SYNCS)
    assert all(figure["value"] > 0 and figure["floor"] > 0 and figure["judged"] == "ratio" for figure in appends)
    assert list(tmp_path.iterdir()) == []
