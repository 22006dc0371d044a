"""The stable error codes of the source, read from it: classes with a `code`, and errors raised with one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parent
ACTING = {
    "PeerError": "the peer",
    "CallerError": "the caller",
    "Busy": "nobody: try again",
    "OperatorError": "the operator",
    "PenstockError": "nobody: try again",
}
"""Who must act, by the class that an error is derived from."""

Bases = dict[str, list[str]]
Statuses = dict[str, int]  # of the classes that name one


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One code, as a page shows it."""

    code: str
    status: int | None
    acting: str
    meaning: str
    remedy: str


def error_codes() -> list[ErrorCode]:
    """Each code once, in the order of the alphabet; what a class says of it comes before what a call says."""
    texts = [file.read_text() for file in sorted(SOURCE.rglob("*.py"))]
    trees = [ast.parse(text) for text in texts if "class " in text or "code=" in text]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: [base.id for base in node.bases if isinstance(base, ast.Name)] for node in nodes}
    statuses = {node.name: int(status) for node in nodes if (status := _constant(node, "status")).isdigit()}
    found: dict[str, ErrorCode] = {}
    for read in (_of_classes, _of_calls):
        for tree in trees:
            for one in read(tree, bases, statuses):
                found.setdefault(one.code, one)
    return sorted(found.values(), key=lambda one: one.code)


def _of_classes(tree: ast.Module, bases: Bases, statuses: Statuses) -> Iterator[ErrorCode]:
    for node in tree.body:
        if not (isinstance(node, ast.ClassDef) and _acting(node.name, bases)):
            continue
        if code := _constant(node, "code") or _default_code(node) or _given_code(node):
            meaning = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
            remedy = _constant(node, "remedy")
            yield ErrorCode(code, _status(node.name, bases, statuses), _acting(node.name, bases), meaning, remedy)


def _of_calls(tree: ast.Module, bases: Bases, statuses: Statuses) -> Iterator[ErrorCode]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _acting(node.func.id, bases)):
            continue
        given = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
        if "code" in given:
            said = [str(one.value) for one in node.args[:2] if isinstance(one, ast.Constant)]
            name, remedy = node.func.id, str(given.get("remedy", ""))
            status = _status(name, bases, statuses)
            yield ErrorCode(str(given["code"]), status, _acting(name, bases), " ".join(said), remedy)


def _constant(node: ast.ClassDef, name: str) -> str:
    for statement in node.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == name:
            return str(statement.value.value) if isinstance(statement.value, ast.Constant) else ""
    return ""


def _default_code(node: ast.ClassDef) -> str:
    """The code that errors of a class have unless another is given."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for name, default in zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True):
                if name.arg == "code" and isinstance(default, ast.Constant):
                    return str(default.value)
    return ""


def _given_code(node: ast.ClassDef) -> str:
    """The code that a class gives to the one it is derived from."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "__init__":
            for given in call.keywords:
                if given.arg == "code" and isinstance(given.value, ast.Constant):
                    return str(given.value.value)
    return ""


def _lineage(name: str, bases: Bases) -> Iterator[str]:
    yield name
    for base in bases.get(name, ()):
        yield from _lineage(base, bases)


def _acting(name: str, bases: Bases) -> str:
    return next((ACTING[one] for one in _lineage(name, bases) if one in ACTING), "")


def _status(name: str, bases: Bases, statuses: Statuses) -> int | None:
    return next((statuses[one] for one in _lineage(name, bases) if one in statuses), None)
