"""Errors become answers."""

from __future__ import annotations

import json
import logging

import pytest

from penstock import errors
from penstock.http.caps import RateExceeded, TooManyOpen
from penstock.http.problems import error_response

CASES = [
    (errors.InputInvalid("x", "is odd"), 400, "input_invalid", {}),
    (errors.NameInvalid("x", "is odd"), 400, "stream_name_invalid", {}),
    (
        errors.Unauthenticated("who?", sent=False), 401, "unauthenticated",
        {"WWW-Authenticate": 'Bearer realm="penstock"'},
    ),
    (
        errors.Unauthenticated("expired"), 401, "unauthenticated",
        {"WWW-Authenticate": 'Bearer realm="penstock", error="invalid_token"'},
    ),
    (TooManyOpen("server.connections_per_token", 3), 429, "too_many_open", {"Retry-After": "5"}),
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
    (errors.DataCorrupt("penstock.db", "malformed"), 503, "data_corrupt", {}),
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


@pytest.mark.parametrize(("limit", "said"), [("log.queue", "or raise log.queue"), ("reads at once", "in 1 s.")])
def test_who_meets_a_limit_is_told_to_raise_it_where_that_can_be_done(limit: str, said: str) -> None:
    assert errors.Busy(limit, 5).remedy.endswith(f"{said.removesuffix('.')}.")


def test_a_defect_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "penstock.http"):
        response = error_response(RuntimeError("the secret is 42"))

    assert response.status == 500
    assert b"42" not in response.body
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    ("grant", "target", "message", "remedy"),
    [
        ("publish", "/a", "'bob' may not publish '/a'", "Use a token made with --publish and a pattern that"),
        ("grant", "export", "'bob' has no grant 'export'", "Use a token made with --grant export."),
        ("admin", "backup", "'bob' may not use 'backup': only the admin may", "Use the admin token: "),
    ],
)
def test_who_is_refused_learns_what_would_help(grant: str, target: str, message: str, remedy: str) -> None:
    told = json.loads(error_response(errors.Forbidden("bob", grant, target)).body)["error"]

    assert told["message"] == message
    assert told["remedy"].startswith(remedy)
