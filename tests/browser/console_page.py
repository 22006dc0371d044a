"""The console in a real browser: whatever the browser complains about, and whatever axe-core finds, fails the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from penstock.testing import RunningServer, require_program

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
Scheme = Literal["light", "dark"]
WIDE, NARROW = 1440, 390

LOOKS: list[tuple[int, Scheme]] = [(WIDE, "light"), (NARROW, "dark"), (WIDE, "dark"), (NARROW, "light")]
"""Each view is looked at in the first two, which have both widths and both schemes; with `--long` in all."""
every_look = pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(*one, id=f"{one[0]}-{one[1]}", marks=() if number < 2 else pytest.mark.long)
        for number, one in enumerate(LOOKS)
    ],
)


class SharedBrowser:
    """Debian's Chromium, started for the first test of a module that asks for it, and closed after the last."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def started(self) -> Browser:
        self._playwright = self._playwright or sync_playwright().start()
        if self._browser is None or not self._browser.is_connected():
            program = require_program("chromium")
            self._browser = self._playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        return self._browser

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._playwright = self._browser = None


shared_browser = SharedBrowser()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The module's Chromium; what was opened in it is closed at the end."""
    browser = shared_browser.started()
    try:
        yield browser
    finally:
        for context in browser.contexts:
            for page in context.pages:
                page.unroute_all(behavior="wait")  # a handler that goes on would fail in the next test
            context.close()


@contextmanager
def console(
    server: RunningServer, place: str = "#/now", *, width: int = WIDE, scheme: Scheme = "light", caused: str = ""
) -> Iterator[Page]:
    """The console, opened at *place* with the admin token in the tab, as after `up`'s address was followed.

    *caused* is a pattern for what the test makes the browser complain of: Chromium does at each answer of 400 and more.
    """
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        complaints = listen_for_complaints(page)
        page.goto(f"{server.url}/console/#token={server.admin_token}")
        page.evaluate("place => { location.hash = place }", place)
        yield page
        assert [one for one in complaints if not (caused and re.search(caused, one))] == []


def listen_for_complaints(page: Page) -> list[str]:
    """What the browser reports while the test goes on: errors, warnings of the policy, exceptions."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    return complaints


def check_accessibility(page: Page) -> None:
    """axe-core finds nothing serious or critical."""
    page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    serious = [
        (one["id"], [node["html"] for node in one["nodes"]][:5])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == [], serious


def check_fits(page: Page) -> None:
    """Nothing sticks out of the page at the side."""
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide


def keep(page: Page, name: str) -> None:
    """Keep a picture, for people to look at."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def look(page: Page, name: str, width: int, scheme: Scheme) -> None:
    """Keep a picture of the page in this look, and check what can be checked of it."""
    keep(page, f"{name}-{width}-{scheme}")
    check_fits(page)
    check_accessibility(page)
