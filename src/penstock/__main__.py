"""`python -m penstock`, and the `penstock` program."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from penstock.cli.app import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
