"""Writes the generated pages: `.venv/bin/python docs/generate.py`. tests/test_docs.py checks that they are current."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

from penstock import limits
from penstock.settings import Settings
from penstock.settings_reading import KNOWN, SettingDescription
from penstock.wire.columns import EVENT
from penstock.wire.ledger import STATES

DOCS = Path(__file__).parent


def limits_page() -> str:
    """docs/limits.md, from the constants of limits.py and the texts below them."""
    page = [
        "# Limits",
        "",
        "Made from `src/penstock/limits.py` by `docs/generate.py`: the fixed limits that a peer can notice.",
        "",
        "Limits that an operator may change are settings: see [operations](operations.md). Limits that only the server",
        "itself notices, how much a cache remembers for instance, are constants beside their use in the source.",
    ]
    for title, rows in _limits(Path(limits.__file__).read_text()).items():
        page += ["", f"## {title}", "", "| limit | value | reason, and what happens there |", "|---|---:|---|", *rows]
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
            sections[title].append(f"| {_words(name)} | {_value(name)} | {why} |")
    return sections


def _words(name: str) -> str:
    return name.replace("_", " ").lower()


def _value(name: str) -> str:
    return f"{getattr(limits, name):,}"


def _reason(statement: ast.stmt) -> str:
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        raise ValueError(f"limits.py, line {statement.lineno}: the limit above has no reason")
    return " ".join(str(statement.value.value).split()).replace("|", "\\|")


def settings_tables() -> str:
    """Every setting, a table a section."""
    parts = []
    for section in Settings.__dataclass_fields__.values():
        parts += [f"### `[{section.name}]` {(type(section.default).__doc__ or '').strip()}", ""]
        parts += ["| setting | default | |", "|---|---|---|"]
        parts += [_row(about) for name, about in KNOWN.items() if name.startswith(section.name + ".")]
        parts.append("")
    return "\n".join(parts)


def _row(about: SettingDescription) -> str:
    choices = f" One of {', '.join(f'`{choice}`' for choice in about.choices)}." if about.choices else ""
    return f"| `{about.name}` | {_default(about)} | {about.description}{choices} |"


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


PARTS = {
    "operations.md": {"settings": settings_tables},
    "pipeline.md": {"states": states_table},
    "export.md": {"columns": columns_table},
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
    (DOCS / "limits.md").write_text(limits_page())
    for name in PARTS:
        (DOCS / name).write_text(page_with_parts(name))


if __name__ == "__main__":
    main()
