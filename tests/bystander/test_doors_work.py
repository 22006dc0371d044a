"""Work in one turn of the loop that grows with what one peer has sent before: others wait behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.core.matching import matches
from penstock.doors.sps.frames import LastWritten
from penstock.doors.sps.requests import Topics
from penstock.limits import PATTERNS
from penstock.testing import RunningServer
from penstock.wire.trickle_channel import Channel
from tests.api.client import ask
from tests.bystander.hostile import Hostile
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside
from tests.doors.sps_client import Wire
from tests.doors.trickle_client import Raw, made, path, post, request

SEGMENTS, AT_ONCE = 8_000, 200
WIRES, STREAMS = 40, 1_000


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


def all_streams_are_looked_through() -> None:
    """When something was last written to a wire is found by its patterns, among all streams that were written."""

    def of(self: LastWritten, patterns: Topics) -> float:
        return max([at for stream, at in self._streams.items() if any(matches(one, stream) for one in patterns)] or [0])

    LastWritten.of = of  # type: ignore[method-assign]


def ask_when_wires_were_written_to(server: RunningServer) -> None:
    """Devices of one user with as many patterns as they may have, which all are written the events of many streams."""
    tids = ",".join([*(f"/shop/*/{number}" for number in range(PATTERNS - 1)), "/shop/*"])
    with ExitStack() as stack, Hostile(server, "/shop") as hostile:
        wires = [stack.enter_context(Wire(server, uid="7", hid=hid, tid=tids)) for hid in range(1, WIRES + 1)]
        events = [hostile.request("POST", f"/v1/publish?stream=/shop/{number}", b"x") for number in range(STREAMS)]
        assert set(hostile.say(b"".join(events), answers=STREAMS)) == {201}
        for wire in wires:
            wire.opened().lines(STREAMS)
        devices = ask(server, "GET", "/online", uid=7).json["devices"]
        assert len(devices) == WIRES
        assert all(device["last_write"] > device["since"] for device in devices)


@pytest.mark.parametrize("sabotage", [None, all_streams_are_looked_through])
def test_when_a_wire_was_written_to_is_known_without_a_look_at_all_streams(
    tmp_path: Path, sabotage: Callable[[], None] | None
) -> None:
    with start_sabotaged(tmp_path / "data", sabotage) as server, beside(server) as bystander:
        ask_when_wires_were_written_to(server)
    if sabotage is None:
        bystander.noticed_nothing()
    else:
        with pytest.raises(AssertionError):
            bystander.noticed_nothing()
