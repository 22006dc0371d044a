"""A Java for Spark: found, or installed from Debian's packages where that is allowed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock import debian

PACKAGES: Final = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""Which of them there is depends on the release; the first that can be had is taken."""

LEAST: Final = 17
REMEDY: Final = f"Run: apt-get install {PACKAGES[0]}"
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')


def ensure() -> str:
    """Make sure of a Java that Spark can use; returns what is wrong, or nothing."""
    problem = what_is_wrong()
    if not problem or debian.why_not():
        return problem
    _install()
    return what_is_wrong()


def _install() -> None:
    for package in PACKAGES[:-1]:
        with suppress(debian.PackagesMissing):
            debian.install([package])
            return
    debian.install([PACKAGES[-1]])


def what_is_wrong() -> str:
    """Why Spark cannot start here; empty if it can."""
    program = find()
    if not program:
        return "there is no Java, which the pipeline on Spark needs"
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = _VERSION.search(said)
    if not found or int(found[1]) < LEAST:
        return f"{program} is older than Java {LEAST}, which the pipeline on Spark needs"
    return ""


def find() -> str | None:
    """The Java that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    if home and (program := Path(home, "bin", "java")).exists():
        return str(program)
    return shutil.which("java")
