"""Who delivers entries as they come does so by a feed; the head of `core/feed.py` names those who do not."""

from __future__ import annotations

import re
from pathlib import Path

import penstock
from penstock.core import feed

DOORS = Path(penstock.__file__).parent / "doors"


def test_no_door_but_those_that_the_feed_names_follows_the_log_by_itself() -> None:
    following = {path.parent.name for path in DOORS.rglob("*.py") if re.search(r"log\.follow\(", path.read_text())}

    assert following == {"eventhorizon"}
    assert "doors/eventhorizon/subscriptions.py" in (feed.__doc__ or "")
    assert (DOORS / "eventhorizon/subscriptions.py").exists()


def test_the_doors_that_the_feed_names_use_it() -> None:
    using = {
        path.relative_to(DOORS).parts[0]
        for path in DOORS.rglob("*.py")
        if re.search(r"\bhub\.start(_watched|_wire)?\b", path.read_text())
    }

    assert using == {"sps", "msgstream", "trickle", "webpush", "webpush_sender"}
