"""Nonsense, in any order, from peers that stay or leave: nothing fails for a reason of ours, and the door goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.server.problems import error_response
from tests.doors.trickle_place import place
from tests.server.wires import on_uvloop

NAMES = st.sampled_from(
    ["a", "b", "_changes", "%2Forders", "~/orders", "a~s.0.AAAAAAAAAAAAAAAAAAAAAA", "%25", "a%2Fb", "é"]
)
SEQS = st.sampled_from(
    [
        "",
        "/0",
        "/1",
        "/2",
        "/-1",
        "/-2",
        "/-9",
        "/next",
        "/x",
        "/9223372036854775807",
        "/-9223372036854775808",
        "/0/0",
        "/%00",
    ]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            "Lp-Trickle-Reset: 1", "Lp-Trickle-Offset: 3", "Lp-Trickle-Offset: -1", "Lp-Trickle-Offset: x",
            "Lp-Trickle-Wait: 1", "Lp-Trickle-Wait: 0", "Expect-Content: text/plain", "Expect: 100-continue",
            "Content-Type: \u00ff", "Connection: close", "Lp-Trickle-Forwarded: 1",
        ]
    ),
    max_size=2, unique=True,
)  # fmt: skip
BODIES = st.sampled_from(
    [
        b"Content-Length: 0\r\n\r\n", b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 5\r\n\r\nhel", b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]
)  # fmt: skip
QUERIES = st.sampled_from(
    ["", "?record=true", "?record=x", "?segments=1", "?segments=0", "?bytes=2", "?consumer=me", "?x=y"]
)
REQUESTS = st.tuples(st.sampled_from(["GET", "POST", "DELETE", "HEAD", "PUT"]), NAMES, SEQS, QUERIES, HEADERS, BODIES)


def encoded(method: str, name: str, seq: str, query: str, headers: list[str], body: bytes) -> bytes:
    lines = [f"{method} /trickle/{name}{seq}{query} HTTP/1.1", "Host: x", "Authorization: Bearer admin", *headers, ""]
    return "\r\n".join(lines).encode("latin-1") + body


@given(st.lists(st.tuples(REQUESTS, st.booleans()), max_size=12))
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@on_uvloop
async def test_nothing_that_is_sent_breaks_the_door(
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    requests: list[tuple[tuple[str, str, str, str, list[str], bytes], bool]],
) -> None:
    caplog.clear()
    async with place(tmp_path_factory.getbasetemp(), changefeed=True) as node:
        for request, stays in requests:
            peer = await node.connect(encoded(*request))
            if not stays:
                await asyncio.sleep(0)
                peer.cut()
        assert await node.ask("POST", "alive") == 200
        node.advance(5)
        assert await node.publish("alive", 0, b"still here") == 200
        assert await node.read("alive", 0) == b"still here"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_the_check_would_see_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    assert error_response(ZeroDivisionError()).status == 500
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
