"""A server whose bindings do not write down where they are: for the test that must notice it."""

from __future__ import annotations

import sys

from penstock.cli.app import run
from penstock.doors.webpush.bindings import Binding
from penstock.doors.webpush.roster import Roster


class ForgetfulBinding(Binding):
    """The sabotage: its position is in memory only."""

    __slots__ = ()

    async def _keep_position(self, position: int) -> None:
        self.position = position


if __name__ == "__main__":
    Roster.kind = ForgetfulBinding
    sys.exit(run(sys.argv[1:]))
