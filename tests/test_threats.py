"""The table of attacks in docs/threats.md is true: each row names tests that are there, none is left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "threats.md"
HEAD = "| attack | guard | test |\n|---|---|---|\n"
BYSTANDERS = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "bystander").glob("test_*.py")}
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file, read and not imported."""
    if not (ROOT / path).is_file():
        return frozenset()
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def mistakes(page: str, files: set[str]) -> list[str]:
    """What is wrong with the table of a page; *files* are those of which it must name a test."""
    rows = [line for line in page.partition(HEAD)[2].splitlines() if line.startswith("|")]
    attacks, named, wrong = Counter[str](), set(), []
    for row in rows:
        cells = [cell.strip() for cell in row.strip().strip("|").split(" | ")]
        attacks[cells[0]] += 1
        found = [_TEST.fullmatch(test) for test in cells[-1].split(", ")]
        if len(cells) != 3 or not all(found):
            wrong.append(f"not of the form | attack | guard | `tests/….py::test_…`, … |: {row}")
        for path, name in (match.groups() for match in found if match):
            named.add(path)
            if name not in names_in(path):
                wrong.append(f"there is no {path}::{name}")
    wrong += [f"twice: {attack}" for attack, count in attacks.items() if count > 1]
    return wrong + [f"no row names a test of {path}" for path in sorted(files - named)]


def test_every_row_names_tests_that_exist_and_every_bystander_has_one() -> None:
    assert mistakes(PAGE.read_text(), BYSTANDERS) == []


ME = "`tests/test_threats.py::test_every_row_names_tests_that_exist_and_every_bystander_has_one`"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([f"| a | b | {ME} |", f"| c | d | {ME}, {ME} |"], ""),
        ([f"| a | b | {ME} |", f"| a | c | {ME} |"], "twice: a"),
        ([f"| a | b | {ME} |", "| c | d | the same |"], "not of the form"),
        ([f"| a | b | {ME.strip('`')} |"], "not of the form"),
        ([f"| a | {ME} |"], "not of the form"),
        ([f"| a | b | {ME}, `tests/test_threats.py::test_gone` |"], "there is no tests/test_threats.py::test_gone"),
        ([f"| a | b | {ME}, `tests/test_gone.py::test_gone` |"], "there is no tests/test_gone.py::test_gone"),
        ([], "no row names a test of tests/test_threats.py"),
    ],
)
def test_a_table_that_is_wrong_is_noticed(rows: list[str], said: str) -> None:
    found = mistakes(HEAD + "\n".join(rows), {"tests/test_threats.py"})

    assert found[0].startswith(said) if said else found == []
