"""Whatever is sent to `/v1`, the answer is a clear one: never a 500, never a hang, nothing changed by nonsense."""

from __future__ import annotations

import socket
from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.testing import RunningServer
from tests.server.api import ask

PATHS = (
    "/v1/publish", "/v1/read", "/v1/streams", "/v1/consumers", "/v1/why", "/v1/log/plan", "/v1/log/arrow", "/v1/backup",
    "/openapi.json", "/health", "/ready", "/metrics", "/v1/", "/", "/v1/read/more",
)  # fmt: skip
NAMES = (
    "stream", "streams", "from", "after", "upto", "cursor", "limit", "meta", "entry", "recipient", "pattern", "parts",
    "max_rows", "max_bytes", "columns", "consumer", "nonsense",
)  # fmt: skip
HEADERS = (
    "Idempotency-Key", "Producer", "Expected-Position", "Event-Type", "Event-Attributes", "Expires-In", "Content-Type",
    "Accept", "X-Anything",
)  # fmt: skip

NAMED = (501, 503, 505)  # unknown method, busy, unknown version: answers with a reason

numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.sampled_from(["0", "1", "-1", "", "1e5", "٣", "0x1", "9" * 25])
)
stream_names = st.one_of(
    st.sampled_from(["/f/a", "/f/a:0:0", "/f/a:0:65:127.0.0.1", "/", ">", "/f/>", "/f/*", "/_ledger",
         "application/x-ndjson", "{}", "p/1"]),
    st.text(max_size=40).map(lambda text: "/f/" + text),
)  # fmt: skip
values = st.one_of(numbers, stream_names, st.text(max_size=30))
header_values = values.map(
    lambda text: text.encode("utf-8", "surrogatepass").replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
)
lists = {"max_size": 4}


def exchange(server: RunningServer, request: bytes) -> int:
    """Send raw bytes on a connection of its own and return the status of the answer; 0 if it was closed without one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while b"\r\n" not in received:
            piece = connection.recv(65_536)
            if not piece:
                return 0
            received += piece
    return int(received.split(b" ", 2)[1])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"]),
    path=st.sampled_from(PATHS),
    params=st.lists(st.tuples(st.sampled_from(NAMES), values), **lists),
    headers=st.lists(st.tuples(st.sampled_from(HEADERS), header_values), **lists),
    body=st.binary(max_size=200),
)
def test_no_request_makes_the_server_fail(
    shared_server: RunningServer,
    method: str,
    path: str,
    params: list[tuple[str, str]],
    headers: list[tuple[str, bytes]],
    body: bytes,
) -> None:
    query = urlencode([(name, value.encode("utf-8", "surrogatepass")) for name, value in params])
    if path == "/v1/backup" and method == "POST":
        body = b'{"directory": "relative"}'  # a fuzzer must not fill the disk with copies
    head = [f"{method} {path}?{query} HTTP/1.1".encode(), b"Host: x", b"Connection: close"]
    head += [b"Authorization: Bearer " + shared_server.admin_token.encode(), b"Content-Length: %d" % len(body)]
    head += [name.encode() + b": " + value for name, value in headers]

    status = exchange(shared_server, b"\r\n".join(head) + b"\r\n\r\n" + body)

    assert 200 <= status < 500 or status in NAMED
    assert ask(shared_server, "GET", "/health", token=None).status == 200


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300),
    st.sampled_from(
        [b"", b"GET /v1/read?stream=/a HTTP/1.1\r\n", b"POST /v1/publish?stream=/f HTTP/1.1\r\nHost: x\r\n"]
    ),
)
def test_no_bytes_make_the_server_fail(shared_server: RunningServer, garbage: bytes, opening: bytes) -> None:
    status = exchange(shared_server, opening + garbage)

    assert status < 500 or status in NAMED
    assert ask(shared_server, "GET", "/health", token=None).status == 200


def test_every_path_with_an_encoded_name_is_answered(shared_server: RunningServer) -> None:
    for tricky in ("/v1/%2e%2e/read", "/v1/" + quote("../read", safe=""), "//v1/read", "/v1/read%00", "/%76%31/read"):
        assert ask(shared_server, "GET", tricky).status in (400, 404)
