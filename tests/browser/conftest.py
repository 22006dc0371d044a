"""One Chromium for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.console_page import shared_browser


@pytest.fixture(scope="module", autouse=True)
def browser_ends_with_its_module() -> Iterator[None]:
    """Playwright's loop must be gone before another module's tests run theirs."""
    yield
    shared_browser.close()
