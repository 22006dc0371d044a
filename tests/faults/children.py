"""Runs modules of the tests in processes of their own, with the same imports."""

from __future__ import annotations

import os
import sys

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def command(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]
