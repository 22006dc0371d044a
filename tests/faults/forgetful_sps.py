"""Servers that are wrong about what devices have confirmed after a restart: for the tests that must notice it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from penstock.cli.app import run
from penstock.doors.sps.former import Interval
from penstock.doors.sps.recall import Recall, Said
from penstock.doors.sps.wires import Wires


class Forgetful(Recall):
    """Knows nothing of former lives, as if they had sent nothing."""

    async def _read(self) -> None:
        pass


class Credulous(Recall):
    """Believes that whoever names an id was sent everything before it that the log has."""

    async def _settle(self, some: Sequence[Said]) -> None:
        for said in some:
            uid, _, _ = said.who.name.partition("/")
            page = await self._log.read_after((f"/users/{uid}",), 0)
            for entry in page.entries:
                if entry.id <= said.upto:
                    self._ledger.record(said.who, "acked", entry.stream, entry.id, entry.id)


class Gullible(Recall):
    """Takes the records for complete: what a crash took away was never sent."""

    async def _unrecorded(self, said: Said) -> list[Interval]:
        return []


if __name__ == "__main__":
    Wires.recalling = {kind.__name__: kind for kind in (Forgetful, Credulous, Gullible)}[os.environ["SABOTAGE"]]
    sys.exit(run(sys.argv[1:]))
