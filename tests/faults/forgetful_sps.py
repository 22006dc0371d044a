"""Servers that are wrong about what devices have confirmed: for the tests that must notice it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from penstock.cli.app import run
from penstock.core import why
from penstock.core.ledger import LedgerEvent
from penstock.doors.sps.wire import DeviceWire
from penstock.doors.sps.wires import Wires


def forgetful(wires: Wires, wire: DeviceWire, upto: int) -> None:
    """Confirms only what the wire that is open now was sent: knows nothing of wires and lives before it."""
    if upto > wire.began:
        wires.ledger.confirm(wire.who, upto)


def credulous(events: Sequence[LedgerEvent]) -> tuple[list[LedgerEvent], LedgerEvent | None]:
    """Believes that whoever names an id was sent everything before it."""
    told, position = _joined(events)
    return told or [LedgerEvent(one.ms, "acked", "", one.door, one.recipient) for one in events], position


_joined = why.joined

if __name__ == "__main__":
    if os.environ["SABOTAGE"] == "forgetful":
        Wires.confirm = forgetful  # type: ignore[method-assign]
    else:
        why.joined = credulous
    sys.exit(run(sys.argv[1:]))
