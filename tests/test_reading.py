"""What a reader of the source can rely on: one name for one thing, and pieces of a size that can be read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FUNCTION_LINES = 58
FILE_LINES = 600
NINE_IN_TEN = 330
"""Lines that nine of ten files stay below."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions(source: Path) -> list[tuple[Path, ast.ClassDef | Function]]:
    """Every class and function, with its file. It takes seconds, and several tests want it."""
    return [
        (file.relative_to(source), node)
        for file in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef | Function)
    ]


def names_used_twice(source: Path) -> list[str]:
    found = Counter(node.name for _, node in definitions(source) if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in found.items() if count > 1)


def functions(source: Path) -> Iterator[tuple[str, Function]]:
    for file, node in definitions(source):
        if isinstance(node, Function):
            yield f"{file}:{node.lineno} {node.name}", node


def too_long(source: Path) -> list[str]:
    return [place for place, node in functions(source) if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES]


def untyped(source: Path) -> list[str]:
    return [place for place, node in functions(source) if node.returns is None]


def test_no_class_name_stands_for_two_things() -> None:
    assert names_used_twice(SOURCE) == []


def test_functions_are_short_and_say_what_they_return() -> None:
    assert too_long(SOURCE) == []
    assert untyped(SOURCE) == []


def test_files_are_short() -> None:
    lengths = sorted(len(file.read_text().splitlines()) for file in SOURCE.rglob("*.py"))

    assert lengths[-1] <= FILE_LINES
    assert lengths[len(lengths) * 9 // 10] <= NINE_IN_TEN


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("class A: ...\nclass B:\n    class A: ...", (["A"], 0, 0)),
        ("def f() -> None:\n" + "    f()\n" * FUNCTION_LINES, ([], 1, 0)),
        ("def f() -> None:\n" + "    f()\n" * (FUNCTION_LINES - 1), ([], 0, 0)),
        ("class A:\n    async def f(self): ...", ([], 0, 1)),
    ],
)
def test_what_is_planted_is_found(tmp_path: Path, code: str, found: tuple[list[str], int, int]) -> None:
    (tmp_path / "module.py").write_text(code)

    assert (names_used_twice(tmp_path), len(too_long(tmp_path)), len(untyped(tmp_path))) == found
