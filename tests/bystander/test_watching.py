"""The bystander himself: he notices nothing where nothing is done to him, and notices what is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.api.v1.publish import PublishApi
from penstock.testing import RunningServer, start_server
from tests.api.client import publish
from tests.bystander.sabotaged import start_sabotaged
from tests.bystander.watching import beside

BUSY_SECONDS = 1.0  # also on a machine that is far slower than usual more than he bears


def test_beside_honest_clients_he_notices_nothing(server: RunningServer) -> None:
    with beside(server) as bystander:
        for _ in range(50):
            assert publish(server, "/others").status == 201

    bystander.noticed_nothing()


def test_he_notices_a_server_that_goes_away(tmp_path: Path) -> None:
    with start_server(tmp_path / "data") as server, beside(server) as bystander:
        server.restart()

    assert bystander.report.errors


def long_work_in_the_loop() -> None:
    """Each publish into /busy computes for so long that everybody else waits."""
    honest = PublishApi.publish

    def busy(self, request, *rest):
        until = time.thread_time() + BUSY_SECONDS
        while request.params.get("stream") == "/busy" and time.thread_time() < until:
            pass
        return honest(self, request, *rest)

    PublishApi.publish = busy


def test_he_notices_long_work_in_the_loop(tmp_path: Path) -> None:
    with start_sabotaged(tmp_path / "data", long_work_in_the_loop) as server, beside(server) as bystander:
        assert publish(server, "/busy").status == 201

    with pytest.raises(AssertionError):
        bystander.noticed_nothing()
