"""Work in one turn of the loop that grows with what one peer has sent before: others wait behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import RunningServer
from penstock.wire.trickle_channel import Channel
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.trickle_client import Raw, made, path, post, request

SEGMENTS, AT_ONCE = 8_000, 200


def the_oldest_is_searched_for() -> None:
    """For each segment that leaves the window all are looked at."""
    Channel.oldest = property(lambda self: min(self._segments, default=self.head))


def fill_a_window_and_empty_it(server: RunningServer) -> None:
    """Many tiny segments, in whose place one large one comes."""
    channel = made(server, segments=10_000, bytes=20_000)
    one = request(server, "POST", path(channel, -1), {"Content-Length": "1"}) + b"x"
    with Raw(server, b"") as publisher:
        for _ in range(SEGMENTS // AT_ONCE):
            publisher.socket.sendall(one * AT_ONCE)
            for _ in range(AT_ONCE):
                assert publisher.head() == 200
    assert post(server, channel, SEGMENTS, b"x" * 19_999).status == 200


@pytest.mark.parametrize("sabotage", [None, the_oldest_is_searched_for])
def test_a_large_segment_in_place_of_thousands_holds_up_nobody(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, beside(server) as bystander:
        fill_a_window_and_empty_it(server)
    if sabotage is None:
        bystander.noticed_nothing()
    else:
        with pytest.raises(AssertionError):
            bystander.noticed_nothing()
