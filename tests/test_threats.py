"""The list of attacks in docs/threats.md is true: each item names tests that are there, none is left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "threats.md"
HEAD = "## What is tried, and what stops it\n"
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
    """What is wrong with the list of a page; *files* are those of which it must name a test."""
    joined = re.sub(r"\n  +", " ", page.partition(HEAD)[2])
    attacks, named, wrong = Counter[str](), set(), []
    for item in re.findall(r"^- (.*)$", joined, re.MULTILINE):
        parts = re.fullmatch(r"(.+?)\. \*\*Guard\*\*: (.+)\. \*\*Shown by\*\* (.+)\.", item)
        found = [_TEST.fullmatch(test) for test in parts[3].split(", ")] if parts else [None]
        attacks[parts[1] if parts else item] += 1
        if not all(found):
            wrong.append(f"not of the form: attack. **Guard**: guard. **Shown by** `tests/….py::test_…`, …: {item}")
        for path, name in (match.groups() for match in found if match):
            named.add(path)
            if name not in names_in(path):
                wrong.append(f"there is no {path}::{name}")
    wrong += [f"twice: {attack}" for attack, count in attacks.items() if count > 1]
    return wrong + [f"no item names a test of {path}" for path in sorted(files - named)]


def test_every_item_names_tests_that_exist_and_every_bystander_has_one() -> None:
    assert mistakes(PAGE.read_text(), BYSTANDERS) == []


ME = "`tests/test_threats.py::test_every_item_names_tests_that_exist_and_every_bystander_has_one`"


def item(attack: str, tests: str, guard: str = " **Guard**: b.") -> str:
    return f"- {attack}.{guard} **Shown by** {tests}."


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([item("a", ME), item("c", f"{ME}, {ME}")], ""),
        ([item("a", ME), item("a", ME)], "twice: a"),
        ([item("a", ME), item("c", "the same")], "not of the form"),
        ([item("a", ME.strip("`"))], "not of the form"),
        ([item("a", ME, guard="")], "not of the form"),
        ([item("a", f"{ME}, `tests/test_threats.py::test_gone`")], "there is no tests/test_threats.py::test_gone"),
        ([item("a", f"{ME},\n  `tests/test_gone.py::test_gone`")], "there is no tests/test_gone.py::test_gone"),
        ([], "no item names a test of tests/test_threats.py"),
    ],
)
def test_a_list_that_is_wrong_is_noticed(items: list[str], said: str) -> None:
    found = mistakes(HEAD + "\n".join(items), {"tests/test_threats.py"})

    assert found[0].startswith(said) if said else found == []
