"""`docs/figures.json`: the last runs of each figure. The pages take their figures from it (`docs/generate.py`).

{"fanout": {"one write each": {"unit": …, "floor_of": …, "must": …, "aim": …, "judged": …,
"runs": [{"value": …, "floor": …, "ratio": …, "met": …, "date": …, "machine": …}]}}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "docs" / "figures.json"
RUNS = 5
"""Kept of each figure, so that its spread is shown; older ones go."""

_OF_A_RUN = ("value", "floor", "ratio", "met", "date", "machine")
_OF_THE_FIGURE = ("unit", "floor_of", "must", "aim", "judged")


def record(shown: list[dict[str, Any]], file: Path = FILE) -> None:
    """Add a run's figures, as `Report` shows them, to *file*. A figure measured in another unit begins anew."""
    book: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for figure in shown:
        of_bench = book.setdefault(figure["bench"], {})
        before = of_bench.get(figure["figure"], {})
        runs = before.get("runs", []) if before.get("unit") == figure["unit"] else []
        run = {name: figure[name] for name in _OF_A_RUN}
        described = {name: figure[name] for name in _OF_THE_FIGURE}
        of_bench[figure["figure"]] = {**described, "runs": [*runs, run][-RUNS:]}
    written = file.with_suffix(".new")
    written.write_text(json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    written.replace(file)
