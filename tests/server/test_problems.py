"""Errors become answers."""

from __future__ import annotations

import json
import logging

import pytest

from penstock import errors
from penstock.server.caps import RateExceeded
from penstock.server.problems import error_response

CASES = [
    (errors.InputInvalid("x", "is odd"), 400, "input_invalid", {}),
    (errors.NameInvalid("x", "is odd"), 400, "stream_name_invalid", {}),
    (errors.Unauthenticated("who?"), 401, "unauthenticated", {"WWW-Authenticate": 'Bearer realm="penstock"'}),
    (
        errors.Forbidden("ann", "publish", "/a"), 403, "forbidden",
        {"WWW-Authenticate": 'Bearer realm="penstock", error="insufficient_scope"'},
    ),
    (errors.NotFound("stream", "/a"), 404, "not_found", {}),
    (errors.StreamExists("/a"), 409, "stream_exists", {}),
    (errors.Trimmed(1, 2), 410, "range_trimmed", {}),
    (errors.TooLarge("body", 2, 1), 413, "too_large", {}),
    (RateExceeded("server.requests_per_token", 5, 2.5), 429, "rate_exceeded", {"Retry-After": "3"}),
    (errors.Busy("queue", 5), 503, "busy", {"Retry-After": "1"}),
    (errors.EngineGone("gone"), 503, "engine_gone", {"Retry-After": "5"}),
    (errors.DiskFull("full"), 507, "disk_full", {"Retry-After": "5"}),
    (errors.PeerError(426, "upgrade"), 426, "protocol", {"Upgrade": "websocket"}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "code", "headers"), CASES)
def test_an_error_says_what_is_wrong_and_what_to_do(
    error: errors.PenstockError, status: int, code: str, headers: dict[str, str]
) -> None:
    response = error_response(error)
    told = json.loads(response.body)["error"]

    assert (response.status, told["code"], dict(response.headers)) == (status, code, headers)
    assert told["message"]
    assert told["remedy"]


def test_a_defect_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "penstock.server"):
        response = error_response(RuntimeError("the secret is 42"))

    assert response.status == 500
    assert b"42" not in response.body
    assert caplog.records[0].exc_info is not None
