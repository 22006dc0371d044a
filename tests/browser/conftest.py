"""One Chromium for the tests of a module, and one server for those that do not disturb each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from penstock.testing import RunningServer, start_server
from tests.browser.console_page import shared_browser

expect.set_options(timeout=30_000)  # for what must come: a server that is asked for the first time on a busy machine


@pytest.fixture(scope="module", autouse=True)
def browser_ends_with_its_module() -> Iterator[None]:
    """Playwright's loop must be gone before another module's tests run theirs."""
    yield
    shared_browser.close()


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that is empty when the first test of the module uses it."""
    with start_server(tmp_path_factory.mktemp("module") / "data") as running:
        yield running
