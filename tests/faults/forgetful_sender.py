"""A server whose bindings do not write down where they are: for the test that must notice it."""

from __future__ import annotations

import sys

from penstock.cli.app import run
from penstock.doors.webpush_sender.binding import Binding
from penstock.doors.webpush_sender.bindings import Bindings


class ForgetfulBinding(Binding):
    """The sabotage: its position is in memory only."""

    __slots__ = ()

    async def _keep_position(self, position: int) -> None:
        self.position = position


if __name__ == "__main__":
    Bindings.kind = ForgetfulBinding
    sys.exit(run(sys.argv[1:]))
