"""Writes the generated pages: `.venv/bin/python docs/generate.py`. tests/test_docs.py checks that they are current."""

from __future__ import annotations

import ast
import json
import re
import statistics
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from error_codes import error_codes
from rooms import rooms_list

from penstock import limits
from penstock.settings import Settings
from penstock.settings_reading import KNOWN, SettingDescription
from penstock.wire.columns import EVENT
from penstock.wire.ledger import STATES

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures.json"
PEERS = DOCS / "peers.json"
BESIDE = "peers"  # the benchmark that has a table of its own


def limits_page() -> str:
    """docs/limits.md, from the constants of limits.py and the texts below them."""
    page = [
        "# Limits",
        "",
        "Made from `src/penstock/limits.py` by `docs/generate.py`: the fixed limits that a peer can notice.",
        "",
        "Limits that an operator may change are settings: see [operations](operations.md). Limits that only the server",
        "itself notices, how much a cache remembers for instance, are constants beside their use in the source.",
        "Each line: *limit* · *value* · *reason, and what happens there*.",
    ]
    for title, rows in _limits(Path(limits.__file__).read_text()).items():
        page += ["", f"## {title}", "", *rows]
    return "\n".join(page) + "\n"


def _limits(source: str) -> dict[str, list[str]]:
    """Rows of limits under the heading above them."""
    headings = {
        number: line.strip("#─ ").capitalize() for number, line in enumerate(source.splitlines(), 1) if "# ──" in line
    }
    sections: dict[str, list[str]] = {title: [] for title in headings.values()}
    body = ast.parse(source).body
    for constant, reason in pairwise(body):
        if isinstance(constant, ast.AnnAssign) and isinstance(constant.target, ast.Name):
            title = headings[max(number for number in headings if number < constant.lineno)]
            name, why = constant.target.id, _reason(reason)
            sections[title].append(_item(f"**{_words(name)}**", _value(name), why))
    return sections


def _words(name: str) -> str:
    return name.replace("_", " ").lower()


def _value(name: str) -> str:
    return f"{getattr(limits, name):,}"


def _reason(statement: ast.stmt) -> str:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        raise ValueError(f"limits.py, line {statement.lineno}: the limit above has no reason")
    return " ".join(str(statement.value.value).split())


def _item(*parts: str) -> str:
    """One item of a list, in lines of at most 112 characters. What stands between backticks stays on its line."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), " · ".join(filter(None, parts)))
    return textwrap.fill(
        whole, 112, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


def settings_tables() -> str:
    """Every setting, a table a section."""
    parts = []
    for section in Settings.__dataclass_fields__.values():
        parts += [f"### `[{section.name}]` {(type(section.default).__doc__ or '').strip()}", ""]
        parts += [_row(about) for name, about in KNOWN.items() if name.startswith(section.name + ".")]
        parts.append("")
    return "\n".join(parts)


def _row(about: SettingDescription) -> str:
    choices = f" One of {', '.join(f'`{choice}`' for choice in about.choices)}." if about.choices else ""
    return _item(f"`{about.name}`", _default(about), f"{about.description}{choices}")


def _default(about: SettingDescription) -> str:
    value = about.default
    if value in ("", ()):
        return "empty"
    if about.type is bool:
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    if isinstance(value, str):
        return f"`{value}`"
    if about.unit == "bytes":
        return _bytes(value)
    return f"{value:,g}" + (f" {about.unit}" if about.unit else "")


def _bytes(value: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,} bytes"


def states_table() -> str:
    """The states of the ledger."""
    rows = [f"| `{s.name}` | {s.rank} | {'yes' if s.final else ''} | {s.meaning} |" for s in STATES]
    return "\n".join(["| state | rank | final | |", "|---|---:|---|---|", *rows]) + "\n"


def columns_table() -> str:
    """The columns of an event."""
    rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in EVENT]
    return "\n".join(["| column | type | |", "|---|---|---|", *rows]) + "\n"


def peers_table() -> str:
    """The figures of `bench peers`: ours beside theirs, and what each of them does for it."""
    figures = json.loads(FIGURES.read_text()).get(BESIDE, {})
    rows = [_beside(name, figure) for name, figure in figures.items()]
    table = ["| what | Penstock | the peer | ratio | marks | the peer, its protocol, where the event is |"]
    return "\n".join([*table, "|---|---:|---:|---:|---|---|", *rows, "", _when(figures) if figures else ""]) + "\n"


def _beside(name: str, figure: dict[str, Any]) -> str:
    runs, unit = figure["runs"], figure["unit"]
    marks = " / ".join(_number(figure[mark]) for mark in ("must", "aim") if figure[mark] is not None)
    met = {"no": " **no**", None: ""}.get(runs[-1]["met"], f" {runs[-1]['met']}")
    values = (f"{_spread(runs, 'value')} {unit}", _spread(runs, "floor"), _spread(runs, "ratio"))
    return f"| {name.partition(' / ')[0]} | {' | '.join(values)} | {marks}{met} | {figure['floor_of']} |"


def figures_tables() -> str:
    """The figures of docs/figures.json, a table a benchmark."""
    parts: list[str] = []
    for bench, figures in json.loads(FIGURES.read_text()).items():
        if bench == BESIDE:
            continue
        parts += [f"### `bench {bench}`", ""]
        parts += ["| figure | value | floor | ratio | must / aim | met |", "|---|---|---|---|---|---|"]
        parts += [_figure(name, figure) for name, figure in figures.items()]
        parts += ["", *_floors(figures), "", _when(figures), ""]
    return "\n".join(parts)


def _figure(name: str, figure: dict[str, Any]) -> str:
    runs = figure["runs"]
    floor = "" if runs[-1]["floor"] is None else _spread(runs, "floor")
    ratio = "" if runs[-1]["ratio"] is None else _spread(runs, "ratio")
    marks = " / ".join("–" if figure[mark] is None else _number(figure[mark]) for mark in ("must", "aim"))
    of = " ×" if figure["judged"] == "ratio" and marks != "– / –" else ""
    met = " ".join(dict.fromkeys({"no": "**no**", None: "–"}.get(run["met"], run["met"]) for run in runs))
    return f"| {name} | {_spread(runs, 'value')} {figure['unit']} | {floor} | {ratio} | {marks}{of} | {met} |"


def _floors(figures: dict[str, Any]) -> Iterator[str]:
    """What the floors are, each with the figures that it is the floor of."""
    of: dict[str, list[str]] = {}
    for name, figure in figures.items():
        if figure["floor_of"]:
            of.setdefault(figure["floor_of"], []).append(name)
    for floor, names in of.items():
        yield _item(f"Floor of {', '.join(names)}: {floor}.")


def _spread(runs: list[dict[str, Any]], name: str) -> str:
    """The median, and the lowest and highest if they differ."""
    values = [run[name] for run in runs if run[name] is not None]
    low, middle, high = map(_number, (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def _number(value: float) -> str:
    """Three digits say all that a run can say; whole numbers stay whole."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _when(figures: dict[str, Any]) -> str:
    runs = [run for figure in figures.values() for run in figure["runs"]]
    dates, machines = sorted({run["date"] for run in runs}), sorted({run["machine"] for run in runs})
    most = max(len(figure["runs"]) for figure in figures.values())
    times = f"{most} runs" if most > 1 else "One run"
    return f"{times}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {'; '.join(machines)}."


def peers_table() -> str:
    """Our figures beside those of others that do the same."""
    book, peers = json.loads(FIGURES.read_text()), json.loads(PEERS.read_text())
    names = peers["peers"]
    table = [f"| | Penstock | {' | '.join(names)} |", "|---|---:|" + "---:|" * len(names)]
    for row in peers["rows"]:
        bench, figure = row["figure"]
        own = statistics.median(run["value"] for run in book[bench][figure]["runs"])
        others = [_number(row["values"][name]) if name in row["values"] else "" for name in names]
        table.append(f"| {row['what']} | {_number(own)} | {' | '.join(others)} |")
    note = (
        f"Penstock: medians of [performance](docs/performance.md). The others ({peers['settings']}): measured "
        f"{peers['measured']} than ours, so read them as orders of magnitude. Empty: another job, or not measured."
    )
    return "\n".join([*table, "", *textwrap.wrap(note, 116, break_on_hyphens=False)]) + "\n"


def errors_page() -> str:
    """docs/errors.md: the stable codes of errors."""
    page = [
        "# Error codes",
        "",
        "Made from the source by `docs/generate.py`. A code is stable: programs may rely on it. Over HTTP it comes as",
        '`{"error": {"code": …, "message": …, "remedy": …}}` with the status given here, on the command line as',
        "`penstock: CODE: message — remedy`. A door may tell an error in its protocol's own form; its page says how.",
        "What is refused of a Trickle segment (`segment_…`, `seq_…`) is on [Trickle's page](trickle.md).",
        "Each line: *code* · *status* (– where no request can meet it) · *who must act* · *meaning* · *remedy*.",
        "",
    ]
    for one in error_codes():
        parts = (f"`{one.code}`", str(one.status or "–"), one.acting, one.meaning.rstrip("."), one.remedy)
        page.append(_item(*parts))
    return "\n".join(page) + "\n"


MADE = {"limits.md": limits_page, "errors.md": errors_page}
"""Pages that are made as a whole."""

PARTS = {
    "operations.md": {"settings": settings_tables},
    "performance.md": {"peers": peers_table, "figures": figures_tables},
    "pipeline.md": {"states": states_table},
    "export.md": {"columns": columns_table},
    "tour.md": {"rooms": rooms_list},
    "../README.md": {"peers": peers_table},
}
"""Pages that are written by hand but for these parts."""


def page_with_parts(name: str) -> str:
    """A page with what is made in it renewed."""
    page = (DOCS / name).read_text()
    for part, make in PARTS[name].items():
        begin, end = f"<!-- {part}: made by docs/generate.py -->", f"<!-- end of {part} -->"
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{make()}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> None:
    """Write the pages."""
    for name, make in MADE.items():
        (DOCS / name).write_text(make())
    for name in PARTS:
        (DOCS / name).write_text(page_with_parts(name))


if __name__ == "__main__":
    main()
