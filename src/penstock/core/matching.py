"""Finds who wants an entry: exact names by dictionary, patterns by a tree of levels.

Most subscriptions name one stream, so those cost one look-up. Patterns are walked level by level;
the cost depends on the depth of the name, not on the number of patterns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from penstock.core.names import ROOT, is_exact

Member = TypeVar("Member")


class _Level(Generic[Member]):
    __slots__ = ("below", "here", "rest")

    def __init__(self) -> None:
        self.below: dict[str, _Level[Member]] = {}
        self.here: dict[Member, None] = {}  # patterns that end at this level
        self.rest: dict[Member, None] = {}  # patterns that end in '>' below this level

    def empty(self) -> bool:
        return not (self.below or self.here or self.rest)


class Interest(Generic[Member]):
    """Members by the names and patterns they asked for."""

    def __init__(self) -> None:
        # Most names have one member, such as a user's stream: a dictionary for each would be 180 bytes more.
        self._exact: dict[str, tuple[Member] | dict[Member, None]] = {}
        self._patterns: _Level[Member] = _Level()

    def add(self, pattern: str, member: Member) -> None:
        """Note that *member* wants what *pattern* covers; a second time changes nothing."""
        if is_exact(pattern):
            members = self._exact.setdefault(pattern, (member,))
            if isinstance(members, dict):
                members[member] = None
            elif member not in members:
                self._exact[pattern] = {members[0]: None, member: None}
            return
        level = self._patterns
        *above, last = _levels(pattern)
        for name in above if last == ">" else (*above, last):
            level = level.below.setdefault(name, _Level())
        (level.rest if last == ">" else level.here)[member] = None

    def remove(self, pattern: str, member: Member) -> None:
        """Forget that wish; nothing happens if it was not there."""
        if not is_exact(pattern):
            self._prune(self._patterns, _levels(pattern), member)
        elif member in (members := self._exact.get(pattern, ())):
            if len(members) == 1:
                del self._exact[pattern]
            elif isinstance(members, dict):
                del members[member]

    def _prune(self, level: _Level[Member], rest: list[str], member: Member) -> None:
        if rest == [">"]:
            level.rest.pop(member, None)
        elif not rest:
            level.here.pop(member, None)
        elif below := level.below.get(rest[0]):
            self._prune(below, rest[1:], member)
            if below.empty():
                del level.below[rest[0]]

    def find(self, name: str) -> Collection[Member]:
        """Members that want stream *name*. One that asked in several ways may come several times."""
        exact = self._exact.get(name, ())
        if self._patterns.empty():
            return exact
        return [*exact, *self._walk(self._patterns, _levels(name), 0)]

    def _walk(self, level: _Level[Member], names: list[str], depth: int) -> Iterator[Member]:
        if depth == len(names):
            yield from level.here
            return
        name = names[depth]
        if level.rest and not any(n[:1] == "_" for n in names[depth:]):
            yield from level.rest
        if below := level.below.get(name):
            yield from self._walk(below, names, depth + 1)
        if name[:1] != "_" and (below := level.below.get("*")):
            yield from self._walk(below, names, depth + 1)


def _levels(pattern: str) -> list[str]:
    """`/a/b` → a, b; `>` → >; the root has the one empty level that only '>' alone covers."""
    return [pattern] if pattern == ">" else [""] if pattern == ROOT else pattern[1:].split("/")
