"""What a pattern matches, and who wants an entry: exact names by dictionary, patterns by a tree of levels.

`matches` is the rule for a pattern and a name, `covers` for a right and the pattern that is asked for. `Interest` has
the rule of `matches` for many patterns at once: most of them name one stream, and cost one look-up. Others are walked
level by level. A name is looked for below its own level and below `*`, so at each level the places may be twice as
many: 32,768 of them below fifteen, if there are as many patterns. Of *quick* patterns alone (`is_quick`) it is looked
for in at most 822 places, however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Generic, TypeVar

from penstock.core.names import ROOMS, ROOT, is_exact

Member = TypeVar("Member")

WILD_LEVELS: Final = 6
"""Levels from the first on in which a quick pattern may have any number of `*`. To look for a name of sixteen levels
then takes some 40 µs at most, besides what it finds."""


def matches(pattern: str, name: str) -> bool:
    """Whether *pattern* covers *name*."""
    if is_exact(pattern):
        return pattern == name
    if pattern == ">":
        return "/_" not in name
    wanted, levels = pattern.split("/")[1:], name.split("/")[1:]
    if wanted[-1] == ">":
        fixed = wanted[:-1]
        if len(levels) <= len(fixed) or name == ROOT or any(level[:1] == "_" for level in levels[len(fixed) :]):
            return False
        wanted, levels = fixed, levels[: len(fixed)]
    if len(wanted) != len(levels):
        return False
    return all(w == level or (w == "*" and level[:1] not in ("_", "")) for w, level in zip(wanted, levels, strict=True))


def covers(grant: str, pattern: str) -> bool:
    """Whether everything that *pattern* can match is matched by *grant*, too."""
    if is_exact(pattern):
        return matches(grant, pattern)
    if grant == ">":
        return not any(level[:1] == "_" for level in pattern.split("/"))
    if pattern == ">" or is_exact(grant):
        return False
    given, asked = grant.split("/")[1:], pattern.split("/")[1:]
    for position, level in enumerate(given):
        rest = asked[position:]
        if level == ">":
            return bool(rest) and not any(name[:1] == "_" for name in rest)
        if not rest or rest[0] == ">" or (level == "*" and rest[0][:1] == "_"):
            return False
        if level not in ("*", rest[0]):
            return False
    return len(given) == len(asked)


def covers_of(grants: Sequence[str], pattern: str) -> bool:
    """Whether any of *grants* covers *pattern*; `/rooms` only by its own name, or together with all rooms."""
    if pattern == ROOMS and ROOMS not in grants and not any(covers(grant, ROOMS + "/*") for grant in grants):
        return False
    return any(covers(grant, pattern) for grant in grants)


def is_quick(pattern: str) -> bool:
    """Whether it has one `*` at most, or all in the first levels: any number of such patterns is looked up quickly."""
    return pattern.count("*") < 2 or "*" not in pattern.split("/")[WILD_LEVELS + 1 :]


def quick_cover(pattern: str) -> str:
    """A quick pattern that covers at least as much: *pattern* itself, or all that is below its first levels.

    `>` covers no level that begins with `_`, so what names such a level is cut behind it, and is quick if it has no `*`
    between the first levels and that one.
    """
    if is_quick(pattern):
        return pattern
    levels = pattern[1:].split("/")
    cut = max(WILD_LEVELS, 1 + _last_hidden(levels))
    return "/" + "/".join([*levels[:cut], ">"] if cut < len(levels) else levels)


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
        """Take *member* off *pattern*; nothing happens if it was not there."""
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
        exact, level = self._exact.get(name, ()), self._patterns
        if not (level.below or level.rest):
            return exact
        found, places, names = [*exact], [level], name[1:].split("/")
        hidden = _last_hidden(names) if "/_" in name else -1
        for depth, level_name in enumerate(names):
            below = []
            for level in places:
                if level.rest and depth > hidden:
                    found += level.rest
                if (one := level.below.get(level_name)) is not None:
                    below.append(one)
                if (one := level.below.get("*")) is not None and level_name[:1] != "_":
                    below.append(one)
            if not below:
                return found
            places = below
        for level in places:
            found += level.here
        return found


def _last_hidden(levels: list[str]) -> int:
    """The place of the last level that begins with `_`; -1 if none does."""
    return next((place for place in range(len(levels) - 1, -1, -1) if levels[place][:1] == "_"), -1)


def _levels(pattern: str) -> list[str]:
    """`/a/b` → a, b; `>` → >; the root has the one empty level that only '>' alone covers."""
    return [pattern] if pattern == ">" else [""] if pattern == ROOT else pattern[1:].split("/")
