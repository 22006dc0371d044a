"""The table."""

from __future__ import annotations

import pytest

from penstock.errors import InputInvalid
from penstock.http.routing import Route, Router
from tests.http.wires import hello


def router(*paths: str) -> Router:
    return Router(Route("GET", path, hello) for path in paths)


def found(table: Router, path: str) -> tuple[str, tuple[str, ...]] | None:
    match = table.find(path)
    return (match.routes["GET"].path, match.captures) if match else None


def test_literal_levels_win_over_wildcards() -> None:
    table = router("/a/b", "/a/*", "/*/b", "/a/**", "/**")

    assert found(table, "/a/b") == ("/a/b", ())
    assert found(table, "/a/c") == ("/a/*", ("c",))
    assert found(table, "/x/b") == ("/*/b", ("x",))
    assert found(table, "/a/c/d") == ("/a/**", ("c/d",))
    assert found(table, "/x/y") == ("/**", ("x/y",))


def test_a_path_that_is_spelled_differently_is_another_path() -> None:
    table = router("/v1/publish", "/v1/x/*")

    for path in (
        "/%761/publish",
        "/v1//publish",
        "/v1/publish/",
        "/V1/publish",
        "/v1/x/",
        "/v1%2Fpublish",
        "",
        "v1/publish",
    ):
        assert table.find(path) is None, path


def test_captures_are_decoded_after_the_path_was_cut() -> None:
    assert found(router("/c/*/*"), "/c/a%2Fb/%C3%A4") == ("/c/*/*", ("a/b", "ä"))


@pytest.mark.parametrize("path", ["/a/..", "/a/%2e%2E/b", "/./b", "/a/%ff", "/a/%zz", "/a/%00", "/r/x%2fy"])
def test_tricks_are_refused(path: str) -> None:
    with pytest.raises(InputInvalid):
        router("/a/*", "/a/*/b", "/r/**", "/*/b").find(path)


def test_head_and_options_follow_from_get() -> None:
    match = Router([Route("GET", "/a", hello), Route("POST", "/a", hello)]).find("/a")

    assert match is not None
    assert match.methods == ("GET", "HEAD", "OPTIONS", "POST")
    assert match.route("HEAD") is match.routes["GET"]
    assert match.route("PUT") is None


def test_a_bad_table_is_refused() -> None:
    with pytest.raises(ValueError, match="two routes"):
        router("/a", "/a")
    for pattern in ("a", "", "/**/a"):
        with pytest.raises(ValueError, match="no pattern"):
            router(pattern)
