"""What others have written, shown on a terminal: there it must not act."""

from __future__ import annotations

import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SHORT = {"\n": r"\n", "\r": r"\r"}


def say(line: str, file: TextIO | None = None) -> None:
    """Print *line* at once; on a terminal its control characters are escaped, into a pipe it goes as it is."""
    out = file or sys.stdout
    print(escape(line) if out.isatty() else line, file=out, flush=True)


def escape(text: str) -> str:
    r"""*text* with control characters spelled, as \u001b: they would move the cursor, or worse. A tab stays."""
    return _CONTROL.sub(lambda found: _SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), text)
