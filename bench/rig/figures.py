"""`docs/figures.json`: the last runs of each figure. The pages take their figures from it (`docs/generate.py`).

{"fanout": {"one write each": {"unit": …, "floor_of": …, "must": …, "aim": …, "judged": …,
"runs": [{"value": …, "floor": …, "ratio": …, "met": …, "date": …, "machine": …, "generator": …}]}}}

`generator` is there where the load may come from several: which of them were used.
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
_COMPARABLE = ("unit", "judged")


def record(shown: list[dict[str, Any]], file: Path = FILE) -> list[str]:
    """Add a run's figures, as `Report` shows them, to *file*; return the names of those that are left out.

    That is whatever was measured without the floor or the peer that it names: it would stand beside marks that it was
    not held against. A figure begins anew when it has another unit, is judged otherwise, or the load came from others.
    """
    book: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for figure in filter(is_whole, shown):
        of_bench = book.setdefault(figure["bench"], {})
        before = of_bench.get(figure["figure"], {})
        run = {name: figure[name] for name in _OF_A_RUN}
        if figure["generator"]:
            run["generator"] = figure["generator"]
        runs = before.get("runs", []) if _are_comparable(before, figure) else []
        described = {name: figure[name] for name in _OF_THE_FIGURE}
        of_bench[figure["figure"]] = {**described, "runs": [*runs, run][-RUNS:]}
    written = file.with_suffix(".new")
    written.write_text(json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    written.replace(file)
    return [figure["figure"] for figure in shown if not is_whole(figure)]


def is_whole(figure: dict[str, Any]) -> bool:
    """Whether all was there that it is measured against."""
    if figure["judged"] == "ratio" and figure["must"] is not None and figure["ratio"] is None:
        return False
    return not figure["floor_of"] or figure["floor"] is not None


def _are_comparable(before: dict[str, Any], figure: dict[str, Any]) -> bool:
    """Whether the runs that are kept may stand beside the new one."""
    same = all(before.get(name) == figure[name] for name in _COMPARABLE)
    return same and all(run.get("generator") == figure["generator"] for run in before["runs"])
