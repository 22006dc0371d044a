"""A ledger, and a server with it, that leaves out one of each group: for the tests that must notice it."""

from __future__ import annotations

import sys

from penstock.cli.app import run
from penstock.core.ledger import Ledger, Recipients

_sent_to_all = Ledger.sent_to_all


def sent_to_all_but_one(self: Ledger, who: Recipients, stream: str, first: int, last: int) -> None:
    """The last of a group is missing from what the ledger says of it."""
    _sent_to_all(self, Recipients(who[:-1]), stream, first, last)


class ForgetsOne(Ledger):
    """The sabotage."""

    sent_to_all = sent_to_all_but_one


if __name__ == "__main__":
    Ledger.sent_to_all = sent_to_all_but_one  # type: ignore[method-assign]
    sys.exit(run(sys.argv[1:]))
