"""What a sender is told when it is not the message that is at fault: the same form, a number, and what to do."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest

from penstock.doors.webpush.error_form import autopush_form
from penstock.errors import Busy, DiskFull, EngineGone, InputInvalid, MailboxFull, NotFound, PeerError, TooLarge
from penstock.http.problems import HandlerTimedOut, error_response
from penstock.http.rate_limits import RateExceeded
from penstock.limits import PUSH_BODY_READ
from penstock.testing import RunningServer, start_server
from penstock.wire.webpush_errors import EndpointRefused, Errno
from tests.api.client import ask
from tests.doors.user_agent import UserAgent

FORM = {"code", "errno", "error", "message", "more_info"}


def test_a_sender_that_is_too_fast_hears_429_with_a_number_and_when_to_come_back(tmp_path: Path) -> None:
    with start_server(tmp_path / "data", server_requests_per_address=0.01) as server:
        ask(server, "POST", "/wpush/v1/garbage", b"", token=None)
        refused = [
            ask(server, method, path, b"", token=None)
            for method, path in (("POST", "/wpush/v1/garbage"), ("PUT", "/wpush/garbage"), ("DELETE", "/m/garbage"))
        ]
        own = ask(server, "GET", "/v1/webpush/key", token=None)

    for reply in refused:
        said = json.loads(reply.body)
        assert (reply.status, said["code"], said["errno"]) == (429, 429, 201)
        assert said.keys() == FORM
        assert said["error"] == "Too Many Requests"
        assert "server.requests_per_address" in said["message"]
        assert "Retry-After" in said["message"]
        assert int(reply.headers["retry-after"]) >= 1
    assert (own.status, json.loads(own.body).keys()) == (429, {"error"})  # Penstock's API keeps its own form


def test_a_body_that_is_not_even_read_is_refused_in_the_same_form(shared_server: RunningServer) -> None:
    reply = ask(shared_server, "POST", "/wpush/v1/garbage", b"x" * (PUSH_BODY_READ + 1), token=None)

    said = json.loads(reply.body)
    assert (reply.status, said["errno"]) == (413, 104)
    assert said.keys() == FORM
    assert "webpush.body_limit" in said["message"]


def test_so_is_one_that_comes_in_chunks_and_does_not_end(shared_server: RunningServer) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=60) as sender:
        sender.sendall(b"POST /wpush/v1/garbage HTTP/1.1\r\nHost: a\r\nTTL: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        sender.sendall(chunk * (1 + PUSH_BODY_READ // 0x10000))
        answer = http.client.HTTPResponse(sender)
        answer.begin()

        assert (answer.status, json.loads(answer.read())["errno"]) == (413, 104)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /wpush/v1/garbage HTTP/1.1", 405),
        (b"DELETE /wpush/v1/a/b/c HTTP/1.1", 405),
        (b"PATCH /wpush HTTP/1.1", 405),
        (b"GET /m/garbage HTTP/1.1", 405),
        (b"DELETE /m HTTP/1.1", 404),
        (b"POST /wpush HTTP/1.1", 404),
        (b"POST /wpush/ HTTP/1.1", 404),
        (b"POST /wpush/v1/../x HTTP/1.1", 400),
        (b"POST /wpush/v1/%2e%2e HTTP/1.1", 400),
        (b"POST /wpush/v1/%ff HTTP/1.1", 400),
        (b"POST /wpush/v1/garbage?x=%zz HTTP/1.1", 404),
        (b"POST /wpush/v1/" + b"x" * 9_000 + b" HTTP/1.1", 414),
        (b"POST /wpush/v1/garbage HTTP/1.1\r\nBroken", 400),
        (b"POST /wpush/v1/garbage HTTP/1.1\r\nA: " + b"x" * 40_000, 431),
        (b"POST /wpush/v1/garbage HTTP/1.1\r\nContent-Length: -1", 400),
        (b"POST /wpush/v1/garbage HTTP/1.1\r\nContent-Length: 999999999", 413),
        (b"POST /wpush/v1/garbage HTTP/1.1\r\nTransfer-Encoding: gzip", 400),
        (b"GET /r/garbage HTTP/1.1", 404),
    ],
)
def test_every_path_of_the_door_answers_in_one_form(shared_server: RunningServer, head: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", shared_server.port), timeout=60) as sender:
        sender.sendall(head + b"\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = http.client.HTTPResponse(sender)
        answer.begin()
        said = json.loads(answer.read())

    assert (answer.status, said.get("code")) == (status, status)
    assert said.keys() == FORM
    assert status != 405 or answer.headers["Allow"]


def test_other_paths_keep_their_own_form(shared_server: RunningServer) -> None:
    for path in ("/wpushy/v1/x", "/v1/nothing", "/", "/v1/../wpush/x", "//wpush/x"):
        assert ask(shared_server, "PATCH", path, b"", token=None).json.keys() == {"error"}


def test_a_receipt_subscription_of_nobody_is_refused(shared_server: RunningServer) -> None:
    with UserAgent(shared_server) as agent:
        path = agent.subscribe()["endpoint"].removeprefix(shared_server.url)
    headers = {"TTL": "60", "Prefer": "respond-async", "Push-Receipt": "/r/nobody"}

    reply = ask(shared_server, "POST", path, b"", headers, token=None)

    said = json.loads(reply.body)
    assert (reply.status, said["errno"]) == (400, 107)
    assert "Link header" in said["message"]


@pytest.mark.parametrize(
    ("error", "status", "errno", "header"),
    [
        (EndpointRefused(Errno.CHANNEL_GONE, "ended"), 410, 106, ("Cache-Control", "max-age=86400")),
        (EndpointRefused(Errno.AUTHORIZATION, "no"), 401, 109, ("WWW-Authenticate", "vapid")),
        (RateExceeded("server.requests_per_address", 5, 2.5), 429, 201, ("Retry-After", "3")),
        (Busy("log.queue", 1), 503, 201, ("Retry-After", "1")),
        (EngineGone("no engine"), 503, 202, ("Retry-After", "5")),
        (DiskFull("no space left"), 503, 202, None),
        (MailboxFull("agent", "messages", 5), 507, 201, ("Retry-After", "120")),
        (HandlerTimedOut("too long"), 503, 202, ("Retry-After", "1")),
        (TooLarge("request body bytes", 9, 8), 413, 104, None),
        (InputInvalid("Host", "is no name of a host"), 400, 102, None),
        (NotFound("path", "/wpush/x/y/z"), 404, 102, None),
        (PeerError(405, "GET is not for this path"), 405, 102, None),
        (PeerError(408, "the request body took too long"), 408, 202, None),
        (RuntimeError("a defect"), 500, 999, None),
    ],
)
def test_everything_that_can_happen_has_a_number(
    error: Exception, status: int, errno: int, header: tuple[str, str] | None
) -> None:
    answer = error_response(error, autopush_form)

    said = json.loads(answer.body)
    assert (answer.status, said["code"], said["errno"]) == (status, status, errno)
    assert said.keys() == FORM
    assert ". " in said["message"]
    assert "defect" not in said["message"].split(". ")[0]  # what was not raised on purpose is nobody's business
    assert header is None or header in answer.headers
