"""Stream names and patterns: which texts are allowed. `core/matching.py` says what a pattern matches.

A name is a path of levels: `/orders/eu`. A pattern is a path in which `*` stands for one level and
a last `>` for one or more levels; `>` alone is everything. Neither matches a level that begins with
`_` unless the pattern spells that level out, so that system streams are never caught by accident.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.errors import NameInvalid
from penstock.limits import LEVEL_BYTES, NAME_BYTES, NAME_LEVELS

ROOT = "/"
ROOMS = "/rooms"
"""The stream of events for several rooms, which each entry names. A right to this stream is a right to all rooms."""
SYSTEM_STREAMS: Final = (
    "/_actions", "/_broadcast", "/_dead", "/_erased", "/_ledger", "/_presence", "/_receipts", "/_receipts/>", "/_sub",
    "/_sub/>",
)  # fmt: skip
"""Patterns that together cover the streams of Penstock itself. A new one is added here, or the audit misses it."""
# Control characters, white space (Unicode's too), and what cursors, lists and patterns use.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\xa0:,*>\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ud800-\udfff]")
_QUIET_PARENTS = ("/users/", "/rooms/", "/channels/", "/_")


@lru_cache(maxsize=65_536)
def check_name(name: str) -> str:
    """Return *name* if a stream may be called so; raise `NameInvalid` with the reason if not."""
    if name == ROOT:
        return name
    _check_path(name)
    if found := _FORBIDDEN.search(name):
        raise NameInvalid(name, f"has the character {found.group()!r}")
    return name


@lru_cache(maxsize=65_536)
def check_pattern(pattern: str) -> str:
    """Return *pattern* if it is one (every name is); raise `NameInvalid` if not."""
    if pattern in (">", ROOT):
        return pattern
    _check_path(pattern)
    levels = pattern.split("/")[1:]
    for position, level in enumerate(levels):
        if level == "*" or (level == ">" and position == len(levels) - 1):
            continue
        if found := _FORBIDDEN.search(level):
            raise NameInvalid(pattern, f"has the character {found.group()!r} inside a level")
    return pattern


def _check_path(name: str) -> None:
    if not name.startswith("/"):
        raise NameInvalid(name, "does not begin with '/'")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES:
        raise NameInvalid(name, f"has {size} bytes")
    levels = name.split("/")[1:]
    if len(levels) > NAME_LEVELS:
        raise NameInvalid(name, f"has {len(levels)} levels")
    for level in levels:
        if level in ("", ".", ".."):
            raise NameInvalid(name, f"has the level {level!r}")
        if len(level.encode("utf-8", "surrogatepass")) > LEVEL_BYTES:
            raise NameInvalid(name, f"has a level of more than {LEVEL_BYTES} bytes")


def is_exact(pattern: str) -> bool:
    """The pattern is a name: it matches that stream only."""
    return "*" not in pattern and ">" not in pattern


def is_level(text: str) -> bool:
    """The text can be one level of a name."""
    try:
        return text != "" and "/" not in text and bool(check_name("/" + text))
    except NameInvalid:
        return False


def is_system(name: str) -> bool:
    """The stream belongs to Penstock itself."""
    return name.startswith("/_")


def parent(name: str) -> str:
    """The stream above; the root is its own parent."""
    return name.rpartition("/")[0] or ROOT


def announces_children(name: str) -> bool:
    """Whether making stream *name* by itself is told to its parent.

    Users, rooms, channels and system streams come in such numbers that their parent would be the
    busiest stream of the log, and nobody reads it.
    """
    return not name.startswith(_QUIET_PARENTS)
