"""Installs Debian packages that this machine lacks, where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import OperatorError

POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian asks this program whether a freshly installed service may start."""


class PackagesMissing(OperatorError):
    """apt-get could not install what is needed."""

    code = "packages_missing"

    def __init__(self, packages: Sequence[str], detail: str) -> None:
        super().__init__(f"apt-get could not install {' '.join(packages)}: {detail}")
        self.remedy = f"Run: apt-get update && apt-get install {' '.join(packages)}"


def why_not() -> str:
    """Why packages cannot be installed here; empty when they can."""
    if os.environ.get("PENSTOCK_NO_SYSTEM"):
        return "--no-system forbids installing it"
    if not shutil.which("apt-get"):
        return "there is no apt-get to install it"
    if os.geteuid() != 0:
        return "only root can install it"
    return ""


def install(packages: Sequence[str]) -> None:
    """Install *packages*, and say so. Services that come with them are not started."""
    print(f"penstock: installing the Debian packages {' '.join(packages)}", file=sys.stderr, flush=True)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with _no_services():
        if _run(command).returncode:
            _run(["apt-get", "update", "-qq"])  # the lists were never fetched, or are too old
            done = _run(command)
            if done.returncode:
                raise PackagesMissing(packages, (done.stderr.strip().splitlines() or ["no reason given"])[-1])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def _no_services() -> Iterator[None]:
    """A test needs nginx's program, not an nginx on port 80."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
