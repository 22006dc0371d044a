"""The synchronous client, against servers that say exactly what they are told to."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.client.http import ApiError, HttpClient, ServerUnreachable, parse_server_url
from penstock.errors import InputInvalid
from tests.client.listening import BUSY, OK, listening


def test_a_kept_connection_serves_all_calls() -> None:
    with listening(OK) as server, HttpClient(server.url, "t0k") as client:
        assert [client.send("GET", "/a", {"x": "1 2/*>"}) for _ in range(3)] == [b"ok"] * 3

    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /base/a?x=1%202/*> HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer t0k\r\n" in server.requests[0]


def test_without_keeping_every_call_has_its_own_connection_also_from_threads_and_after_pickling() -> None:
    with listening(OK) as server, ThreadPoolExecutor(4) as threads:
        client = pickle.loads(pickle.dumps(HttpClient(server.url, keep=False)))  # noqa: S301 (our own)

        assert list(threads.map(lambda _: client.send("PUT", "/a"), range(12))) == [b"ok"] * 12

    assert server.connections == 12


def test_an_error_says_who_answered_what_and_when_to_come_back() -> None:
    with listening(BUSY) as server, HttpClient(server.url) as client, pytest.raises(ApiError) as refused:
        client.send("PUT", "/a")

    error = refused.value
    assert (error.status, error.code, str(error), error.remedy) == (503, "busy", "too much", "Wait 7 s.")
    assert error.retry_after == 7
    assert error.__notes__ == ["the server answered 503 busy"]


def test_an_answer_that_breaks_off_is_unreachable_also_when_it_is_read_as_it_comes() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
    with (
        listening(cut) as server,
        pytest.raises(ServerUnreachable, match="timed out"),
        HttpClient(server.url).open("/a", timeout=0.2) as answer,
    ):
        answer.read()


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x00", "\x7f", "\udc80"])
def test_a_header_ends_no_line(value: str) -> None:
    with pytest.raises(InputInvalid, match="header X: holds a line break"):
        HttpClient("http://127.0.0.1:9").send("GET", "/", headers={"X": value})


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8800", "ftp://x", "http://", "http://x:port", "http://x/é", "http://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputInvalid):
        parse_server_url(url)


def test_an_address_is_taken_apart() -> None:
    assert parse_server_url("https://h/a/") == (True, "h", 443, "/a")
    assert parse_server_url("http://[::1]:9").authority == "[::1]:9"
