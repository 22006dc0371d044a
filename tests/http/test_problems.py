"""Errors become answers, in one place."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import errors
from penstock.http.problems import Problem, error_response
from penstock.http.rate_limits import RateExceeded, TooManyOpen
from penstock.http.responses import Response

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
    (errors.MailboxFull("ann", "messages", 5), 507, "mailbox_full", {"Retry-After": "120"}),
    (errors.PeerError(426, "upgrade"), 426, "protocol", {"Upgrade": "websocket"}),
]  # fmt: skip


def test_numbers_that_a_program_goes_on_with_stand_beside_the_words() -> None:
    told = json.loads(error_response(errors.Trimmed(1, 2)).body)["error"]

    assert told.keys() == {"code", "message", "remedy", "trimmed_upto"}
    assert told["trimmed_upto"] == 2


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


SOURCE = Path(errors.__file__).parent
ROOMS = ("http", "api", "doors", "node")
ITS_OWN = {"api/v1/operations.py"}
"""`/ready` says 503 of itself: no error is behind it."""


def statuses(node: ast.AST) -> bool:
    """Whether a status of an error is written anywhere in *node*."""
    numbers = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and type(one.value) is int)
    return any(400 <= number < 600 for number in numbers)


def made_of_errors(tree: ast.AST) -> Iterator[int]:
    """Lines in which a module decides for itself which status an error has."""
    for node in ast.walk(tree):
        match node:
            case ast.IfExp(test=ast.Call(func=ast.Name(id="isinstance"))):
                found = statuses(node)
            case ast.Dict(keys=[ast.Name(id=name), *_]):
                found = hasattr(errors, name) and statuses(node)
            case ast.Call(func=ast.Name(id="Response"), args=[first, *_]):
                found = statuses(first)
            case _:
                found = False
        if found:
            yield node.lineno  # type: ignore[attr-defined]  # all three have it


def test_nobody_else_says_which_status_an_error_has() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{line}"
        for room in ROOMS
        for file in sorted((SOURCE / room).rglob("*.py"))
        if file.name != "problems.py" and str(file.relative_to(SOURCE)) not in ITS_OWN
        for line in made_of_errors(ast.parse(file.read_text()))
    ]

    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "try: pass\nexcept Busy: return Response(503)",
        "status = 503 if isinstance(error, Busy) else 500",
        "STATUS = {Busy: 503}",
        "Response(404, b'nothing')",
    ],
)
def test_whoever_does_is_found(code: str) -> None:
    assert list(made_of_errors(ast.parse(code)))


def test_a_form_says_how_a_problem_is_written_and_gets_its_whole_meaning() -> None:
    error = errors.Forbidden("ann", "publish", "/a")
    seen: list[Problem] = []

    response = error_response(error, lambda problem: seen.append(problem) or Response(problem.status, b"no"))

    assert (response.status, response.body) == (403, b"no")
    assert (seen[0].code, seen[0].message, seen[0].error) == ("forbidden", str(error), error)
    assert seen[0].headers[0][0] == "WWW-Authenticate"
