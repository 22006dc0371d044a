"""Every door resumes from the lake: what was trimmed reads as if it were still in the log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import RunningServer
from tests.api.lake_rig import archive, server_with_lake, trim
from tests.doors.test_matrix import READERS, write_v1

BODIES = [b'{"n":%d}' % number for number in range(12)]


@pytest.fixture(scope="module")
def half_trimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with one stream for each reader, of which the first eight entries are in the lake only."""
    folder = tmp_path_factory.mktemp("cold")
    with server_with_lake(folder, hub_recent=1) as server:
        for cold in (True, False):
            for number in range(len(READERS)):
                write_v1(server, f"/cold/{number}", BODIES[:8] if cold else BODIES[8:])
            if cold:
                upto = archive(server, folder / "lake")
                assert trim(server, upto=upto, apply=True).json["trimmed"] == upto
        yield server


@pytest.mark.parametrize("reader", READERS)
def test_a_door_that_resumes_below_the_trim_point_misses_nothing(half_trimmed: RunningServer, reader: str) -> None:
    stream = f"/cold/{list(READERS).index(reader)}"

    assert READERS[reader](half_trimmed, stream, len(BODIES)) == BODIES
