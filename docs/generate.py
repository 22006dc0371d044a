"""Writes the generated pages: `.venv/bin/python docs/generate.py`. tests/test_docs.py checks that they are current."""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `bench`, which is no part of the package

from error_codes import error_codes
from rooms import rooms_list

from bench import peers, reconnect
from penstock import limits
from penstock.settings import Settings
from penstock.settings_reading import KNOWN, SettingDescription
from penstock.wire.ledger import STATES
from penstock.wire.table_columns import EVENT

DOCS = Path(__file__).parent
FIGURES = DOCS / "figures.json"
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


def numbers_list() -> str:
    """The settings that are numbers, by section, for whoever looks for a number."""
    sections = {}
    for name, about in KNOWN.items():
        section, _, short = name.partition(".")
        if about.type in (int, float):
            sections.setdefault(section, []).append(f"`{short}`")
    said = ". ".join(f"*{section}*: {', '.join(names)}" for section, names in sections.items())
    return "\n".join(textwrap.wrap(f"{said}.", 120, break_long_words=False, break_on_hyphens=False)) + "\n"


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
    """The figures of `bench peers`: what Penstock does for each, and a row for each peer with what that one does."""
    figures = json.loads(FIGURES.read_text()).get(BESIDE, {})
    rows = ["| what; protocol and durability | Penstock | the peer | ratio | must / aim |", "|---|---:|---:|---:|---|"]
    for what in dict.fromkeys(name.partition(" / ")[0] for name in figures):
        of = [figure for name, figure in figures.items() if _is_of(name, what)]
        ours = next(text for discipline, text in peers.OURS.items() if what.startswith(discipline))
        rows += [f"| **{what}**, {of[0]['unit']}. Penstock: {ours} | | | | |", *map(_beside, of)]
    return "\n".join([*rows, "", _when(figures) if figures else ""]) + "\n"


def _beside(figure: dict[str, Any]) -> str:
    runs = figure["runs"]
    marks = " / ".join(_number(figure[mark]) for mark in ("must", "aim") if figure[mark] is not None)
    met = f": {_met(runs)}" if any(_values(runs, "met")) else ""
    ours, theirs, ratio = _middle(runs, "value"), _middle(runs, "floor"), _spread(runs, "ratio")
    return f"| {figure['floor_of']} | {ours} | {theirs} | {ratio} | {marks}{met} |"


def _middle(runs: list[dict[str, Any]], name: str) -> str:
    """The median of the runs that have it."""
    values = _values(runs, name)
    return _number(statistics.median(values)) if values else ""


def _values(runs: list[dict[str, Any]], name: str) -> list[Any]:
    """Of all runs that have it: a floor or a peer may have been missing in one, the last one too."""
    return [run[name] for run in runs if run[name] is not None]


def _met(runs: list[dict[str, Any]]) -> str:
    """What the runs have reached, all of them, so that a good one does not hide another."""
    return " ".join(dict.fromkeys({"no": "**no**"}.get(met, met) for met in _values(runs, "met"))) or "–"


def storms_table() -> str:
    """What is reckoned of one lost machine, and with which costs."""
    table = [f"| {' | '.join(reconnect.HEADINGS)} |", "|" + "---:|" * len(reconnect.HEADINGS)]
    rows = (f"| {' | '.join(row)} |" for row in reconnect.rows())
    return "\n".join([f"{reconnect.costs()}", "", *table, *rows]) + "\n"


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
    marks = " / ".join("–" if figure[mark] is None else _number(figure[mark]) for mark in ("must", "aim"))
    of = " ×" if figure["judged"] == "ratio" and marks != "– / –" else ""
    value, floor, ratio = f"{_spread(runs, 'value')} {figure['unit']}", _middle(runs, "floor"), _spread(runs, "ratio")
    return f"| {name} | {value} | {floor} | {ratio} | {marks}{of} | {_met(runs)} |"


def _floors(figures: dict[str, Any]) -> Iterator[str]:
    """What the floors are, each with the figures that it is the floor of."""
    of: dict[str, list[str]] = {}
    for name, figure in figures.items():
        if figure["floor_of"]:
            of.setdefault(figure["floor_of"], []).append(name)
    for floor, names in of.items():
        yield _item(f"Floor of {', '.join(names)}: {floor}.")


MILLIONS = 800_000
"""From here on several runs are given in millions: three numbers of seven digits are too long for a row."""


def _spread(runs: list[dict[str, Any]], name: str) -> str:
    """The median, and the lowest and highest if they differ."""
    if not (values := _values(runs, name)):
        return ""
    low, middle, high = min(values), statistics.median(values), max(values)
    if low == high:
        return _number(middle)
    if middle < MILLIONS:
        return f"{_number(middle)} ({_number(low)}–{_number(high)})"
    return f"{middle / 1e6:.3g} M ({low / 1e6:.3g}–{high / 1e6:.3g})"


def _number(value: float) -> str:
    """Three digits say all that a run can say; whole numbers stay whole."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _when(figures: dict[str, Any]) -> str:
    runs = [run for figure in figures.values() for run in figure["runs"]]
    dates, machines = sorted({run["date"] for run in runs}), sorted({run["machine"] for run in runs})
    most = max(len(figure["runs"]) for figure in figures.values())
    times = f"{most} runs" if most > 1 else "One run"
    loads = sorted({run["generator"] for run in runs if "generator" in run})
    by = f" Load by {'; '.join(loads)}." if loads else ""
    return f"{times}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {'; '.join(machines)}.{by}"


SHOWN_BESIDE = {
    "publishes/s, on the disk before the answer": "durable publish, 64 in flight",
    "µs of CPU for a live delivery": "fan-out",
    "KB of memory for an idle connection": "idle",
    "events/s to a reader that catches up": "replay",
}
"""The rows of the README's table, and the disciplines of `bench peers` that they show."""


def short_peers_table() -> str:
    """The same for the README: one row a discipline, one column a peer."""
    figures = json.loads(FIGURES.read_text()).get(BESIDE, {})
    peers = list(dict.fromkeys(name.partition(" / ")[2] for name in figures))
    table = [f"| | Penstock | {' | '.join(peers)} |", "|---|---:|" + "---:|" * len(peers)]
    for what, discipline in SHOWN_BESIDE.items():
        of = {name.partition(" / ")[2]: figure["runs"] for name, figure in figures.items() if _is_of(name, discipline)}
        if of:
            theirs = [_middle(of[peer], "floor") if peer in of else "" for peer in peers]
            table.append(f"| {what} | {_middle(next(iter(of.values())), 'value')} | {' | '.join(theirs)} |")
    return "\n".join([*table, "", _when(figures) if figures else ""]) + "\n"


def _is_of(name: str, discipline: str) -> bool:
    return name.partition(" / ")[0] == discipline


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
    "scale.md": {"storms": storms_table},
    "tour.md": {"rooms": rooms_list},
    "../README.md": {"peers": short_peers_table, "numbers": numbers_list},
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
