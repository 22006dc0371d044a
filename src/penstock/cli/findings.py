"""What `doctor` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.settings import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `status` is ok, warn or fail."""

    check: str
    status: str
    message: str
    remedy: str = ""


Check = Callable[[Path, Settings], Iterator[Finding]]
