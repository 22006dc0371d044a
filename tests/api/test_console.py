"""`/console/` as HTTP: which files there are, and what the browser is told to allow."""

from __future__ import annotations

import pytest

from penstock.api.console import FILES
from penstock.testing import RunningServer
from tests.api.client import ask

NAMES = sorted(path.relative_to(FILES).as_posix() for path in FILES.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_file_is_served_without_a_token_under_the_policy(shared_server: RunningServer, name: str) -> None:
    reply = ask(shared_server, "GET", f"/console/{name}", token=None)

    assert reply.status == 200
    assert reply.body == (FILES / (name or "index.html")).read_bytes()
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"


def test_what_the_browser_has_is_not_sent_again(shared_server: RunningServer) -> None:
    first = ask(shared_server, "GET", "/console/app.js", token=None)

    known = {"If-None-Match": first.headers["etag"]}
    again = ask(shared_server, "GET", "/console/app.js", headers=known, token=None)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
    changed = ask(shared_server, "GET", "/console/app.js", headers={"If-None-Match": '"older"'}, token=None)
    assert (changed.status, changed.body) == (200, first.body)


@pytest.mark.parametrize(
    "name", ["nothing.js", "../settings.py", "%2e%2e/settings.py", "vendor", "vendor/../app.js", "app.js/"]
)
def test_nothing_else_is_served(shared_server: RunningServer, name: str) -> None:
    assert ask(shared_server, "GET", f"/console/{name}", token=None).status in (400, 404)


def test_the_slash_may_be_left_out(shared_server: RunningServer) -> None:
    reply = ask(shared_server, "GET", "/console", token=None)

    assert (reply.status, reply.headers["location"]) == (308, "/console/")


def test_the_page_has_nothing_inline_and_views_make_no_markup_of_text() -> None:
    page = (FILES / "index.html").read_text()
    assert "<script>" not in page
    assert "style=" not in page
    own = {path.name: path.read_text() for path in FILES.glob("*.js")}
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "localStorage",
        "new Function",
    ):
        assert [name for name, text in own.items() if word in text.replace("no innerHTML", "")] == [], word


def test_own_javascript_stays_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FILES.glob("*.js")) <= 2500
