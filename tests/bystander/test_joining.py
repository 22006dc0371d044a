"""Many readers that come at once to large entries: others have their turn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.core import feed, hub, recent_entries
from tests.api.client import Tail, publish
from tests.bystander.catalogue import plain
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.trickle_client import Raw

READERS = 40
ENTRIES = 14
BODY = b'"' * 1_000_000  # each byte is two in JSON


def everything_at_once() -> None:
    """A reader is given all that is in memory in one go, and many readers in one turn of the loop."""
    feed.SLICE_BYTES = hub.SLICE_BYTES = recent_entries.SLICE_BYTES = 1 << 40


@pytest.mark.parametrize("sabotage", [None, everything_at_once])
def test_readers_of_large_entries_that_come_at_once(tmp_path: Path, sabotage: Callable[[], None] | None) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server:
        for _ in range(ENTRIES):
            assert publish(server, "/large", BODY).status == 201
        with beside(server) as bystander, ExitStack() as stack:
            # They ask, all at once, and do not read: what they are given waits in the server.
            question = plain(server, "GET", "/v1/tail?streams=/large&after=0")
            readers = [stack.enter_context(Raw(server, question)) for _ in range(READERS)]
            assert [reader.head() for reader in readers] == [200] * READERS
            with Tail(server, "/large", after=0) as last:
                assert len(last.lines(ENTRIES)) == ENTRIES
        if sabotage is None:
            bystander.noticed_nothing()
        else:
            with pytest.raises(AssertionError):
                bystander.noticed_nothing()
