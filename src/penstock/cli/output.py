"""What commands print: values or sentences, progress on long work, and others' text, which must not act."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import msgspec

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SHORT = {"\n": r"\n", "\r": r"\r"}


def show(value: object, sentence: str, as_json: bool) -> None:
    """Print the answer of a command: *value* for programs (`--json`), the *sentence* for people."""
    print(as_line(value) if as_json else sentence, flush=True)


def as_line(value: object) -> str:
    """*value* as JSON in one line."""
    return msgspec.json.encode(value).decode()


def say(line: str, file: TextIO | None = None) -> None:
    """Print *line* at once; on a terminal its control characters are escaped, into a pipe it goes as it is."""
    out = file or sys.stdout
    print(escape(line) if out.isatty() else line, file=out, flush=True)


def escape(text: str) -> str:
    r"""*text* with control characters spelled, as \u001b: they would move the cursor, or worse. A tab stays."""
    return _CONTROL.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text)


@contextmanager
def follow_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told (done, total), where somebody watches; elsewhere what it is told goes nowhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, each with its end, and a bar of how far they were read."""
    with path.open("rb") as file, follow_progress(path.name) as progress:
        done, total = 0, path.stat().st_size
        for line in file:
            done += len(line)
            progress(done, total)
            yield line
