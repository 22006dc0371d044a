"""`./penstock bench nodes` runs, and judges itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import nodes


@pytest.mark.long
def test_the_benchmark_of_nodes_prints_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes.main(["--quick", "--json", "--dir", str(tmp_path)]) == 0

    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(figures) == 2
    assert all(figure["value"] > 0 and figure["floor"] > 0 for figure in figures)
    assert list(tmp_path.iterdir()) == []
