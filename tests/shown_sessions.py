"""Sessions that a page shows: a script of the shell, and below it what it prints. Tests run the one, and compare.

A line that begins with a space goes on from the line above: output is broken there to be read. Numbers, times and keys
are of the day; they are compared as such, not by their value.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_SESSION = re.compile(r"^```sh\n(?P<script>(?:(?!```).*\n)+)```\n\n```\n(?P<shown>(?:(?!```).*\n)+)```$", re.MULTILINE)


class ShownSession(NamedTuple):
    """One script, and what the page says it prints."""

    script: str
    shown: str


def sessions_in(page: Path) -> list[ShownSession]:
    """All sessions of a page, in their order."""
    return [ShownSession(found["script"], found["shown"]) for found in _SESSION.finditer(page.read_text())]


def without_values(output: str) -> list[str]:
    """Lines of output with everything that differs from day to day taken out."""
    whole = re.sub(r"\n +", " ", output.replace("\r", "")).replace('"", "', '"","')
    whole = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", whole)
    return [re.sub(r"\d+(\.\d+)?", "N", line.replace(" ", "")) for line in whole.splitlines() if line.strip()]


def run_session(session: ShownSession, folder: Path, url: str) -> list[str]:
    """What the script prints in *folder*, with the server at *url* where the page has the usual address."""
    script = session.script.replace("127.0.0.1:8800", url.partition("//")[2])
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PENSTOCK_URL": url},
        timeout=60,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return without_values(done.stdout)
