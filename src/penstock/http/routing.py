"""Routing is a table: paths and methods in, a route and its captures out.

    Route("POST", "/v1/publish", publish, body=WHOLE(4 * MIB))
    Route("GET", "/trickle/*/*", segment)         # two captures, one level each
    Route("GET", "/console/**", page)             # one capture: the rest, with its slashes

Literal levels are compared with the path as it came: `/%761/publish` is not `/v1/publish`, so nobody gets
around a rule of a proxy in front by spelling a path differently. Captures are decoded, level by level after
the path was cut, so an encoded slash never makes a level. `.` and `..`, however spelled, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import InputInvalid
from penstock.http.problems import Form
from penstock.http.requests import Handler, Request
from penstock.wire.urls import decode_level


class BodyKind(Enum):
    """How a route takes the request's body."""

    NONE = "none"  # none is expected; a small one is read and dropped
    WHOLE = "whole"  # the handler is called when it is complete
    STREAM = "stream"  # the handler is called at the head, and the body goes where it says


@dataclass(frozen=True, slots=True)
class Body:
    """A body mode with its limit in bytes; over it the answer is 413."""

    kind: BodyKind
    limit: int


NONE: Final = Body(BodyKind.NONE, 64 * 1024)


def WHOLE(limit: int) -> Body:  # noqa: N802 - reads as a constant beside NONE
    """The handler gets the body whole, in `request.body`."""
    return Body(BodyKind.WHOLE, limit)


def STREAM(limit: int) -> Body:  # noqa: N802
    """The handler is called at the head, and says with `request.divert` where the body goes."""
    return Body(BodyKind.STREAM, limit)


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    body: Body = NONE
    timeout: float | None = -1.0
    """Seconds from the head to the answer; None is no deadline; -1 is the listener's `request_timeout`."""
    body_timeout: float | None = -1.0
    """Seconds in which the body must make progress; None is no deadline; -1 is the listener's."""
    admit: Callable[[Request], None] | None = None
    """Called before a body is waited for: raises to refuse early (auth, for instance). Not called for one that
    came whole with its head, so the handler checks all the same."""
    door: str = ""
    """Under which name its connections are counted."""
    form: Form | None = None
    """How it says what is wrong, if not as Penstock's API does. It speaks for its whole first level:
    for paths and methods beside it as well."""


class Match:
    """What the table says about a path: its routes by method, and what the wildcards stand for."""

    __slots__ = ("captures", "routes")

    def __init__(self, routes: dict[str, Route], captures: tuple[str, ...] = ()) -> None:
        self.routes, self.captures = routes, captures

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that are answered here, for `Allow`."""
        names = {*self.routes, "OPTIONS"} | ({"HEAD"} if "GET" in self.routes else set())
        return tuple(sorted(names))

    def route(self, method: str) -> Route | None:
        """The route for *method*; HEAD runs GET's."""
        found = self.routes.get(method)
        return self.routes.get("GET") if found is None and method == "HEAD" else found


class _Node:
    """One level of the table's tree."""

    __slots__ = ("any", "children", "rest", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.rest: dict[str, Route] = {}
        self.routes: dict[str, Route] = {}


class Router:
    """The table. A literal level wins over `*`, and `*` over `**`."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, Match] = {}  # paths without wildcards, found in one step
        self._root = _Node()
        self._forms: dict[str, Form] = {}  # by first level: how a door speaks there, whatever is asked
        for route in self.routes:
            self._add(route)

    def find(self, path: str) -> Match | None:
        """Look *path* up as it came. Raises `InputInvalid` for a path that nobody should send."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        levels = path.split("/")[1:]
        decoded = [decode_level(level) for level in levels]
        if "." in decoded or ".." in decoded:
            raise InputInvalid("path", "has a level '.' or '..'", code="path_invalid")
        return _find(self._root, levels, decoded, 0, ())

    def form(self, path: str) -> Form | None:
        """How errors are said under this path, also where it leads nowhere; None is the form of Penstock's API."""
        return self._forms.get(path.partition("?")[0].split("/", 2)[1]) if path.startswith("/") else None

    def _add(self, route: Route) -> None:
        levels = _pattern(route.path)
        if route.form is not None and levels[0] not in ("", "*", "**"):
            self._forms[levels[0]] = route.form
        table = _place(self._root, levels)
        if route.method in table:
            raise ValueError(f"two routes for {route.method} {route.path}")
        table[route.method] = route
        if "*" not in route.path:
            self._exact[route.path] = Match(table)


def _pattern(path: str) -> list[str]:
    levels = path.split("/")
    if levels[0] or len(levels) < 2 or "**" in levels[1:-1]:
        raise ValueError(f"{path!r} is no pattern: '/' first, '**' only at the end")
    return levels[1:]


def _place(node: _Node, levels: list[str]) -> dict[str, Route]:
    for level in levels:
        if level == "**":
            return node.rest
        if level == "*":
            node.any = node.any or _Node()
            node = node.any
        else:
            node = node.children.setdefault(level, _Node())
    return node.routes


def _find(node: _Node, levels: list[str], decoded: list[str], depth: int, captures: tuple[str, ...]) -> Match | None:
    if depth == len(levels):
        return Match(node.routes, captures) if node.routes else None
    child = node.children.get(levels[depth])
    found = _find(child, levels, decoded, depth + 1, captures) if child else None
    if found is None and node.any and decoded[depth]:
        found = _find(node.any, levels, decoded, depth + 1, (*captures, decoded[depth]))
    if found is None and node.rest:
        found = _rest(node, decoded[depth:], captures)
    return found


def _rest(node: _Node, tail: list[str], captures: tuple[str, ...]) -> Match:
    if any("/" in level for level in tail):
        raise InputInvalid("path", "has an encoded '/' where levels matter", code="path_invalid")
    return Match(node.rest, (*captures, "/".join(tail)))
