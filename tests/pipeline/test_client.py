"""What the pipeline does with a server that is busy."""

from __future__ import annotations

import pytest

from penstock.client.http import ApiError
from penstock.pipeline.client import PipelineClient
from tests.client.listening import BUSY, listening


def test_a_busy_server_is_asked_again_when_it_said_and_not_before() -> None:
    with listening(BUSY) as server, pytest.raises(ApiError, match="too much"):
        PipelineClient(server.url, "t", patience=5).call("GET", "/v1/pipeline")  # it asks for 7 s, which is too long

    assert len(server.requests) == 1


def test_a_busy_server_that_asks_for_no_time_is_asked_until_patience_ends() -> None:
    answer = BUSY.replace(b"Retry-After: 7", b"Retry-After: 0")
    with listening(answer) as server, pytest.raises(ApiError, match="too much"):
        PipelineClient(server.url, "t", patience=0.2).call("GET", "/v1/pipeline")

    assert len(server.requests) > 1
