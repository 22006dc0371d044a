"""`python -m penstock`, and the `penstock` program."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    _see_to_standard_files()
    from penstock.cli.app import run

    return run(sys.argv[1:])


def _see_to_standard_files() -> None:
    """Open stdin, stdout and stderr where they are closed: a socket that got their number would crash libuv."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    sys.exit(main())
