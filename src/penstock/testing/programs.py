"""Programs that some tests need besides Python: real proxies, browsers, tracers."""

from __future__ import annotations

import shutil

from penstock import debian


def require_program(name: str, *, package: str = "") -> str:
    """Return the path of program *name*, installing its Debian *package* if it is missing.

    Skips the running test only where the program can be neither found nor installed, with that
    reason; an installation that is allowed and fails is a failure.
    """
    if found := find_program(name):
        return found
    package = package or name
    if reason := debian.why_not():
        import pytest

        pytest.skip(f"{name} is missing and {reason}; install the Debian package {package}")
    debian.install([package])
    if found := find_program(name):
        return found
    raise AssertionError(f"the Debian package {package} has no program {name}")


def find_program(name: str) -> str | None:
    """Where *name* is; daemons live in folders that are not on everybody's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
