"""Which names and patterns are allowed, and what matches what."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.core.matching import Interest, covers, is_quick, matches, quick_cover
from penstock.core.names import (
    SYSTEM_STREAMS,
    announces_children,
    check_name,
    check_pattern,
    is_exact,
    is_level,
    parent,
)
from penstock.errors import NameInvalid
from penstock.limits import NAME_LEVELS

levels = st.sampled_from(["a", "b", "_sub", "users"])
names = st.lists(levels, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
patterns = st.one_of(
    st.just(">"),
    st.builds(
        lambda parts, rest: "/" + "/".join(parts + rest),
        st.lists(st.one_of(levels, st.just("*")), min_size=1, max_size=3),
        st.sampled_from([[], [">"]]),
    ),
)


NO_NAMES = [
    "", "orders", "//", "/a/", "/a//b", "/./a", "/a/..", "/a:b", "/a,b", "/a b", "/a\tb", "/a\u00a0b", "/a\u2028b",
    "/*", "/>", "/a\x00", "/" + "x" * 129, "/a" * 17, "/" + "/".join(["x" * 100] * 6), "/\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_these_are_not(name: str) -> None:
    with pytest.raises(NameInvalid):
        check_name(name)


@pytest.mark.parametrize("pattern", [">", "/*", "/>", "/orders/*", "/shop/>", "/*/x/>", "/orders"])
def test_these_are_patterns(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "*", "/a*", "/>/a", "/a>", "a/*", "/a/ *"])
def test_these_are_no_patterns(pattern: str) -> None:
    with pytest.raises(NameInvalid):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (">", "/", True),
        (">", "/a/b", True),
        (">", "/_ledger", False),
        (">", "/a/_b", False),
        ("/*", "/a", True),
        ("/*", "/a/b", False),
        ("/*", "/_ledger", False),
        ("/*", "/", False),
        ("/>", "/a/b", True),
        ("/>", "/", False),
        ("/shop/>", "/shop", False),
        ("/shop/>", "/shop/a/b", True),
        ("/shop/>", "/shop/_a", False),
        ("/_sub/>", "/_sub/a", True),
        ("/_sub/*", "/_sub/a", True),
        ("/*/a", "/_sub/a", False),
    ],
)
def test_a_pattern_matches_by_levels_and_never_a_hidden_one(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


@given(st.lists(patterns | names, max_size=6), names)
def test_the_tree_of_patterns_finds_what_matching_one_by_one_finds(asked: list[str], name: str) -> None:
    interest: Interest[int] = Interest()
    for member, pattern in enumerate(asked):
        interest.add(pattern, member)

    assert set(interest.find(name)) == {m for m, pattern in enumerate(asked) if matches(pattern, name)}


@given(st.lists(patterns | names, min_size=1, max_size=6), names, st.data())
def test_what_was_removed_is_not_found(asked: list[str], name: str, data: st.DataObject) -> None:
    interest: Interest[int] = Interest()
    for member, pattern in enumerate(asked):
        interest.add(pattern, member)
    gone = data.draw(st.integers(0, len(asked) - 1))

    interest.remove(asked[gone], gone)
    interest.remove(asked[gone], gone)

    assert set(interest.find(name)) == {m for m, p in enumerate(asked) if m != gone and matches(p, name)}


@pytest.mark.parametrize(
    ("pattern", "cover"),
    [
        ("/a/b/c/d/e/f/*", ""),
        ("/*/*/*/*/*/*/g/h", ""),
        ("/*/>", ""),
        ("/*/b/c/d/e/f/*", "/*/b/c/d/e/f/>"),
        ("/a/b/c/d/e/f/*/h/*/>", "/a/b/c/d/e/f/>"),
        ("/_a/b/c/d/e/f/*/h/*", "/_a/b/c/d/e/f/>"),
        ("/a/b/c/d/e/f/g/_h/*/*", "/a/b/c/d/e/f/g/_h/>"),
        ("/a/b/c/d/e/f/*/*/_h", "/a/b/c/d/e/f/*/*/_h"),
    ],
)
def test_patterns_that_take_long_have_a_cover_that_does_not(pattern: str, cover: str) -> None:
    assert is_quick(pattern) is (cover == "")
    assert quick_cover(pattern) == (cover or pattern)


deep = st.lists(st.sampled_from(["a", "b", "_c"]), min_size=6, max_size=9).map(lambda parts: "/" + "/".join(parts))


@given(deep, st.sets(st.integers(0, 9)), st.booleans())
def test_a_cover_matches_all_that_the_pattern_matches(name: str, stars: set[int], rest: bool) -> None:
    levels = ["*" if place in stars and level != "_c" else level for place, level in enumerate(name[1:].split("/"))]
    pattern = "/" + "/".join([*levels[:-1], ">"] if rest and levels[-1] != "_c" else levels)

    assert matches(pattern, name)
    assert matches(quick_cover(pattern), name)


def test_any_number_of_quick_patterns_is_looked_for_in_few_places() -> None:
    looks = 0

    class Counted(dict):  # type: ignore[type-arg]
        def get(self, key: str, default: object = None) -> object:
            nonlocal looks
            looks += 1
            return super().get(key, default)

    interest: Interest[int] = Interest()
    for levels in product("a*", repeat=NAME_LEVELS - 1):
        pattern = "/" + "/".join(levels) + "/z"
        if is_quick(pattern):
            interest.add(pattern, 1)
    waiting = [interest._patterns]
    while waiting:
        level = waiting.pop()
        waiting += level.below.values()
        level.below = Counted(level.below)

    assert list(interest.find("/a" * NAME_LEVELS)) == []
    assert 700 < looks / 2 <= 822


@given(patterns | names, patterns | names, names)
def test_a_grant_that_covers_a_pattern_matches_all_that_the_pattern_matches(grant: str, asked: str, name: str) -> None:
    if covers(grant, asked) and matches(asked, name):
        assert matches(grant, name)


@given(patterns)
def test_every_pattern_covers_itself_unless_it_spells_a_hidden_level_under_a_wildcard(pattern: str) -> None:
    assert covers(pattern, pattern)


def test_parents() -> None:
    assert [parent(n) for n in ("/a/b", "/a", "/")] == ["/a", "/", "/"]
    assert is_exact("/a")
    assert not announces_children("/users/42")
    assert announces_children("/orders")


@pytest.mark.parametrize(
    ("text", "level"),
    [("7", True), ("alice@example.net", True), ("", False), ("a/b", False), (">", False), ("*", False), ("..", False),
     ("a b", False), ("a:b", False), ("x" * 129, False)],
)  # fmt: skip
def test_a_level_is_what_can_stand_between_two_slashes(text: str, level: bool) -> None:
    assert is_level(text) is level


def _system_names(source: str) -> set[str]:
    """Names of system streams in Python source; what is put behind a slash is some level."""
    texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    found = {text for text in texts if isinstance(text, str) and re.fullmatch(r"/_[a-z][\w/]*", text)}
    return {name + "level" if name.endswith("/") else name for name in found}


def test_every_system_stream_that_the_source_names_is_in_the_list() -> None:
    sources = [file.read_text() for file in Path(penstock.__file__).parent.rglob("*.py")]
    named = {name for source in sources if '"/_' in source for name in _system_names(source)}

    assert {"/_ledger", "/_receipts/level", "/_sub/level"} <= named  # it does find them
    assert {name for name in named if not any(matches(pattern, name) for pattern in SYSTEM_STREAMS)} == set()
    assert _system_names('a = "/_new"; b = f"/_shards/{a}"') == {"/_new", "/_shards/level"}
